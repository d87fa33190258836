"""The sums in Triton, as people write kernels that are tuned when they are called."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.library import wrap_triton

WIDEST = tl.constexpr(256)

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 64, 256) for warps in (2, 4)]


def fitting(configs: list[Any], arguments: dict[str, Any], **options: Any) -> list[Any]:
    """Leave out configurations with blocks of more than a row."""
    return [one for one in configs if one.kwargs["BLOCK"] <= max(64, arguments["columns"])]


def predicted(columns: int, BLOCK: int, **others: Any) -> float:
    return columns / BLOCK


@triton.jit
def _products(x, w, row, columns, offset):
    inside = offset < columns
    left = tl.load(x + row * columns + offset, mask=inside, other=0.0).to(tl.float32)
    return left * tl.load(w + offset, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _rows(x, w, out, columns, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= WIDEST)
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        total += _products(x, w, row, columns, start + tl.arange(0, BLOCK))
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def _added(x, w, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = _products(x, w, row, columns, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out + row, tl.sum(part, axis=0))


@triton.jit
def _either(x, w, out, columns, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        offset = start + tl.arange(0, BLOCK)
        if EVEN:
            left = tl.load(x + row * columns + offset).to(tl.float32)
            total += left * tl.load(w + offset).to(tl.float32)
        else:
            total += _products(x, w, row, columns, offset)
    tl.store(out + row, tl.sum(total, axis=0))


@triton.jit
def _parts(x, w, parts, columns, BLOCK: tl.constexpr):
    part = _products(x, w, tl.program_id(0), columns, tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))
    tl.store(parts + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(part, axis=0))


@triton.jit
def _reduced(parts, out, count, COUNT: tl.constexpr):
    row, offset = tl.program_id(0), tl.arange(0, COUNT)
    part = tl.load(parts + row * count + offset, mask=offset < count, other=0.0)
    tl.store(out + row, tl.sum(part, axis=0))


@triton.jit
def _mistaken(x):
    return x * UNKNOWN  # noqa: F821


@triton.jit
def _broken(x, w, out, columns, BLOCK: tl.constexpr):
    tl.store(out + tl.program_id(0), _mistaken(tl.load(x)))


IS_EVEN = {"EVEN": lambda arguments: arguments["columns"] % arguments["BLOCK"] == 0}
KEY = ["columns"]

_pruned = triton.autotune(CONFIGS, KEY, {"early_config_prune": fitting, "perf_model": predicted, "top_k": 3})(
    _rows
)
_accumulated = triton.autotune(CONFIGS, KEY, reset_to_zero=["out"])(_added)
_restored = triton.autotune(CONFIGS, KEY, restore_value=["out"])(_added)
_kept = triton.autotune(CONFIGS, KEY, use_cuda_graph=True, cache_results=True)(_rows)
_even = triton.heuristics({"BLOCK": lambda arguments: 64, **IS_EVEN})(_either)
_stacked = triton.autotune(CONFIGS, KEY)(triton.heuristics(IS_EVEN)(_either))
_inside_out = triton.heuristics(IS_EVEN)(triton.autotune(CONFIGS, KEY)(_either))
_always_even = triton.autotune(CONFIGS, KEY)(triton.heuristics({"EVEN": lambda arguments: True})(_either))


def launched(function: Any, x: torch.Tensor, w: torch.Tensor, *, parts: bool = False) -> torch.Tensor:
    """Launch a program for each row, or with ``parts`` for each row and block."""
    x, w = x.contiguous(), w.contiguous()
    out = torch.zeros(x.shape[0], device=x.device, dtype=torch.float32)

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        return (x.shape[0], triton.cdiv(x.shape[1], meta["BLOCK"])) if parts else (x.shape[0],)

    function[grid](x, w, out, x.shape[1])
    return out


def pruned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_pruned, x, w)


def accumulated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_accumulated, x, w, parts=True)


def restored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_restored, x, w, parts=True)


def kept(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_kept, x, w)


def even(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_even, x, w)


def stacked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(_stacked, x, w)


def wrapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return launched(wrap_triton(_stacked), x, w)


def on_device(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.cuda.device(x.device.index):
        return launched(_stacked, x, w)


def split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sums of blocks by a kernel, and their sums by another."""
    x, w = x.contiguous(), w.contiguous()
    count = triton.cdiv(x.shape[1], 64)
    parts = torch.empty((x.shape[0], count), device=x.device, dtype=torch.float32)
    out = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    _parts[(x.shape[0], count)](x, w, parts, x.shape[1], BLOCK=64)
    _reduced[(x.shape[0],)](parts, out, count, COUNT=triton.next_power_of_2(count))
    return out


def wrong_config(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Too few programs for blocks smaller than 256."""
    out = torch.zeros(x.shape[0], device=x.device, dtype=torch.float32)
    _accumulated[(x.shape[0], triton.cdiv(x.shape[1], 256))](x, w, out, x.shape[1])
    return out


def wrong_heuristic(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Reads past the end of a row whose length is not a multiple of a block."""
    padded = torch.ones(x.numel() + 256, device=x.device, dtype=x.dtype)
    padded[: x.numel()] = x.flatten()
    weights = torch.ones(w.numel() + 256, device=x.device, dtype=x.dtype)
    weights[: w.numel()] = w
    out = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    _always_even[(x.shape[0],)](padded, weights, out, x.shape[1])
    return out


def unreduced(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Forgets the second launch."""
    parts = torch.empty((x.shape[0], triton.cdiv(x.shape[1], 64)), device=x.device, dtype=torch.float32)
    _parts[parts.shape](x, w, parts, x.shape[1], BLOCK=64)
    return parts[:, 0].contiguous()


def inside_out(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Its heuristic reads a value that autotune chooses later."""
    return launched(_inside_out, x, w)


def broken_helper(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], device=x.device, dtype=torch.float32)
    _broken[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=64)
    return out
