"""A kernel outside of the repository with two Triton files of odd names that share a helper module, two CUDA
files, and a provider that torch.compile makes; none of them under a usual name."""

from __future__ import annotations

from pathlib import Path

CUDA = """namespace two_of_each {{

template <typename T>
__global__ void {bounds}{name}(const T* x, T* out, int n) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{
    out[i] = x[i] * T(0.5);
  }}
}}

template __global__ void {name}<float>(const float*, float*, int);

}}  // namespace two_of_each
"""

TRITON = '''"""Half of every element, in {what}."""

import torch
import triton
import triton.language as tl

from .helpers import half, programs


@triton.jit
def _{name}(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, half(x), mask=at < n)


def {name}(x, piece, team=4):
    out = torch.empty_like(x)
    _{name}[(programs(x.numel(), piece),)](x, out, x.numel(), piece, num_warps=team)
    return out
'''

FILES = {
    "__init__.py": '''"""Half of every element."""

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A vector."""

    n: int
    kind: str = one_of("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """How many elements a program takes."""

    piece: int = one_of(128, 256, default=128, unit="p")


@dataclass(frozen=True, kw_only=True)
class Teams:
    """How many elements a program takes, and its warps."""

    piece: int = one_of(128, 256, default=128, unit="p")
    team: int = one_of(2, 4, default=4, unit="t")


def work(problem: Problem) -> Work:
    return Work(bytes_of(problem.kind, (problem.n,), (problem.n,)), {problem.kind: problem.n})


def tolerance(problem: Problem) -> Tolerance:
    return Tolerance(rtol=0.0, atol=0.0)


kernel = Kernel(
    problem=Problem,
    size=("n",),
    work=work,
    tolerance=tolerance,
    providers=(
        Provider("plain", "plain.py:half", language="torch"),
        Provider("fused", "plain.py:half", language="torch", compiled=True),
        Provider("left", "left_hand.py:left", Pieces, language="triton"),
        Provider("right", "right-less.py:right", Teams, language="triton"),
        Provider("blocks", "odd-name.cu:by_block"),
        Provider("grids", "halves.cu:by_grid"),
    ),
    baseline="plain",
)
''',
    "reference.py": '''"""Inputs and the right answer."""

from kernel_pipeline.tensors import dtype_of, normal


def inputs(problem, device, seed):
    return normal([(problem.n,)], problem.kind, device, seed)


def reference(x):
    return x.double() / 2


def outputs(problem):
    return (((problem.n,), dtype_of(problem.kind)),)
''',
    "plain.py": '''"""By torch."""


def half(x):
    return x / 2
''',
    "helpers.py": '''"""What both Triton files share."""

import triton


@triton.jit
def half(x):
    return x * 0.5


def programs(n, piece):
    return triton.cdiv(n, piece)
''',
    "left_hand.py": TRITON.format(name="left", what="pieces"),
    "right-less.py": TRITON.format(name="right", what="pieces by teams"),
    "odd-name.cu": CUDA.format(name="by_block", bounds="__launch_bounds__(128) "),
    "halves.cu": CUDA.format(name="by_grid", bounds=""),
    "kernel.yaml": """workloads:
  few: {x: n, n: [1000, 64, 4096], kind: [float32, float16]}
presets:
  smoke: {workloads: [few], "*": {piece: [128, 256]}}
""",
}


def write(folder: Path) -> Path:
    """The kernel in a folder of its own."""
    made = folder / "two_of_each"
    made.mkdir()
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made
