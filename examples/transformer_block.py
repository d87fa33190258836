"""A transformer block with this repository's kernels in the place of torch's: correct, and timed.

    python -m examples.transformer_block
    python -m examples.transformer_block --batch 4 --tokens 4096 --hidden 4096 --heads 32 --dtype bfloat16

The block is pre-norm: ``x + attention(rmsnorm(x))``, then ``x + mlp(layernorm(x))`` with GELU between two
linear layers, which stay torch's. ``check`` compares outputs and gradients with the same block of torch's
functions in float64, which computes attention head by head so that its memory suffices. Then the pipeline's
own instrument times both blocks, their forward pass and both passes, eager and compiled, and each function on
its own, to show where the kernels gain time and where they do not. On a GPU it replays a graph over inputs
that no cache holds, and measures the device's time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kernel_pipeline import ops
from kernel_pipeline.machine import device
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.statistics.quantiles import quantile
from kernel_pipeline.timing.launch_gap import SecondContext
from kernel_pipeline.timing.stopwatch import Stopwatch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Functions:
    """The functions of a block, except for its matrix products."""

    rmsnorm: Callable[..., Tensor]
    layernorm: Callable[..., Tensor]
    attention: Callable[..., Tensor]
    gelu: Callable[..., Tensor]


OURS = Functions(ops.rmsnorm, ops.layernorm, ops.attention, ops.gelu)

TORCHS = Functions(
    rmsnorm=lambda x, weight: functional.rms_norm(x, weight.shape, weight, 1e-6),
    layernorm=lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
    attention=lambda q, k, v, causal: functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
    gelu=partial(functional.gelu, approximate="tanh"),
)


def attention_by_head(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return torch's attention, one head after the other, recomputed in the backward pass. In float64 torch
    writes the scores to memory; for all heads they take tokens / head_dim times as much as the queries."""
    attention = partial(functional.scaled_dot_product_attention, is_causal=causal)
    batches = [
        torch.stack(
            [
                checkpoint(attention, *head, use_reentrant=False, preserve_rng_state=False)
                for head in zip(*batch, strict=True)
            ]
        )
        for batch in zip(q, k, v, strict=True)
    ]
    return torch.stack(batches)


EXACT = replace(TORCHS, attention=attention_by_head)


class Block(nn.Module):
    """A decoder's block over (batch, tokens, hidden)."""

    def __init__(self, hidden: int, heads: int, functions: Functions) -> None:
        super().__init__()
        self.heads = heads
        self.functions = functions
        self.before_attention = nn.Parameter(torch.ones(hidden))
        self.before_mlp = nn.Parameter(torch.ones(hidden))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.merge = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, in x's shape."""
        batch, tokens, hidden = x.shape
        normed = self.functions.rmsnorm(x, self.before_attention)
        q, k, v = self.qkv(normed).view(batch, tokens, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
        mixed = self.functions.attention(q, k, v, True)
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        normed = self.functions.layernorm(x, self.before_mlp, self.bias)
        out: Tensor = x + self.down(self.functions.gelu(self.up(normed)))
        return out


def parsed(words: list[str], on_gpu: bool) -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=4 if on_gpu else 1)
    parser.add_argument("--tokens", type=int, default=2048 if on_gpu else 64)
    parser.add_argument("--hidden", type=int, default=4096 if on_gpu else 256)
    parser.add_argument("--heads", type=int, default=32 if on_gpu else 4)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=0.2, help="of sampling, for each time")
    options = parser.parse_args(words)
    if options.hidden % options.heads:
        parser.error(f"--heads {options.heads} do not divide --hidden {options.hidden}: name a divisor.")
    return options


def gradients(block: Block, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the output, and the gradients of x and of the block's parameters."""
    x = x.detach().requires_grad_()
    out = block(x)
    return [out.detach(), *torch.autograd.grad(out, [x, *block.parameters()], grad)]


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest error of the tensors, each relative to the largest element of the exact tensor."""
    return max(
        float((one.double() - right).abs().max() / right.abs().max())
        for one, right in zip(found, exact, strict=True)
    )


def check(ours: Block, torchs: Block, x: Tensor) -> bool:
    """Print how far outputs and gradients are from float64, and return whether ours are as near as torch's.

    The block in float64 takes the most memory. With as many tokens as hidden elements, a head of 128 and
    batches of 4, its backward pass holds 27 tensors of x's size at once, including its parameters' gradients
    (counted on a CPU); its parameters are as large as another 3. At 4x4096x4096 that is 30 x 0.54 GB = 16 GB.
    The scores of all heads would take 32 such tensors each time that they are written. When the blocks of
    ``x.dtype`` run, one by one, only the output and the gradients remain in float64, 5 x 0.54 GB.
    """
    grad = torch.randn_like(x)
    right = exactly(ours, x, grad)
    mine, theirs = (error(gradients(block, x, grad), right) for block in (ours, torchs))
    print(f"largest error of output and gradients against float64: ours {mine:.2g}, torch's {theirs:.2g}")
    return mine <= 2 * theirs + torch.finfo(x.dtype).eps


def exactly(block: Block, x: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the ``gradients`` of a block with the same parameters in float64."""
    exact = Block(x.shape[2], block.heads, EXACT).to(x.device, torch.float64)
    exact.load_state_dict(block.state_dict())
    return gradients(exact, x.double(), grad.double())


class Clock:
    """The pipeline's stopwatch, for calls of any kind."""

    def __init__(self, where: torch.device, seconds: float) -> None:
        set_mode = SecondContext(where).set_mode if where.type == "cuda" else lambda: None
        self.stopwatch = Stopwatch(where, TimingSettings(max_seconds=seconds), set_mode)
        self.stopwatch.warm_up()

    def microseconds(self, call: Callable[..., Tensor | list[Tensor]], *inputs: Tensor) -> float:
        """Return the median of a call's samples."""
        for _ in range(3):
            out = call(*inputs)
        outputs = [out] if isinstance(out, Tensor) else out
        moved = sum(one.nbytes for one in (*inputs, *outputs))
        samples, _ = self.stopwatch.time(call, inputs, moved)
        return quantile(sorted(samples.samples_us), 0.5)


NAME = len("forward and backward, compiled")


def row(name: str, times: list[float], chosen: str = "") -> str:
    """Return a line of the table."""
    ours, torchs = times
    return f"{name:<{NAME}} {ours:10.1f} {torchs:10.1f} {torchs / ours:7.2f}  {chosen}".rstrip()


def show(clock: Clock, ours: Block, torchs: Block, x: Tensor) -> None:
    """Print the times of the whole block, then of each function's forward pass."""
    print(f"{'':<{NAME}} {'ours us':>10} {'torch us':>10} {'times':>7}  chosen")
    grad = torch.randn_like(x)
    for how in ("eager", "compiled"):
        if how == "compiled":
            for block in (ours, torchs):
                block.compile(fullgraph=True)
        with torch.no_grad():
            print(row(f"forward, {how}", [clock.microseconds(block, x) for block in (ours, torchs)]))
        passes = [partial(gradients, block) for block in (ours, torchs)]
        print(row(f"forward and backward, {how}", [clock.microseconds(both, x, grad) for both in passes]))
    for name, inputs in inputs_of(ours, x).items():
        words = {"causal": True} if name == "attention" else {}
        with torch.no_grad():
            choice = ops.warm(getattr(ops, name), *inputs, **words)
        configuration = " ".join(
            [choice.provider, *(f"{key}={value}" for key, value in choice.parameters.items())]
        )
        chosen = (
            configuration if choice.how == "exact" else f"{configuration} ({choice.how}: {choice.reason})"
        )
        calls = [partial(getattr(functions, name), **words) for functions in (OURS, TORCHS)]
        with torch.no_grad():
            print(row(name, [clock.microseconds(call, *inputs) for call in calls], chosen))


def inputs_of(block: Block, x: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Return the inputs that each function gets in a block."""
    batch, tokens, hidden = x.shape
    ones, zeros = block.before_mlp.detach(), block.bias.detach()
    q, k, v = (x.view(batch, tokens, block.heads, -1).transpose(1, 2).clone() for _ in range(3))
    wide = torch.randn(batch, tokens, 4 * hidden, device=x.device).to(x.dtype)
    return {"rmsnorm": (x, ones), "layernorm": (x, ones, zeros), "attention": (q, k, v), "gelu": (wide,)}


def main(words: list[str]) -> int:
    """Run the example. Return 1 if the block is further from float64 than torch's."""
    chosen = device.resolve("auto")
    options = parsed(words, chosen.kind == "cuda")
    if chosen.uuid is not None:  # before CUDA starts: the stopwatch reads the state of this GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
    where, dtype = torch.device(chosen.kind), getattr(torch, options.dtype)
    torch.manual_seed(0)
    ours = Block(options.hidden, options.heads, OURS).to(where, dtype)
    torchs = Block(options.hidden, options.heads, TORCHS).to(where, dtype)
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(options.batch, options.tokens, options.hidden, device=where).to(dtype)
    print(f"{chosen.name}: {tuple(x.shape)}, {options.heads} heads, {options.dtype}")
    if not check(ours, torchs, x):
        print("error: the block with these kernels is further from float64 than torch's.", file=sys.stderr)
        return 1
    if where.type == "cuda":
        torch.cuda.empty_cache()  # a captured graph has its own memory pool and can't use cached memory
    show(Clock(where, options.seconds), ours, torchs, x)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
