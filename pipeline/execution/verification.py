"""Is the output right? Compared with the float64 reference, element by element, from poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from kernels import Tensors
from kernels.contract import Tolerance

CHUNK = 1 << 24
"""Elements compared at a time, so that float64 temporaries stay small beside the tensors."""


@dataclass(frozen=True)
class Verdict:
    """Whether an output is right; ``error`` is None exactly then.

    ``max_abs_err`` and ``max_rel_err`` are over the elements where both sides are finite; the relative
    error leaves out elements where the reference is smaller than the absolute tolerance.
    """

    max_abs_err: float
    max_rel_err: float
    error: str | None


@dataclass(frozen=True)
class Expected:
    """The right answer, and for each output its shape, dtype and tolerance."""

    reference: Tensors
    declared: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    tolerances: tuple[Tolerance, ...]


def compare_all(outputs: Tensors, expected: Expected) -> Verdict:
    """Compare every output with its reference; the first that is wrong says why."""
    if len(outputs) != len(expected.declared):
        return Verdict(0.0, 0.0, f"returned {len(outputs)} outputs, not {len(expected.declared)}")
    verdicts = []
    parts = zip(outputs, expected.reference, expected.declared, expected.tolerances, strict=True)
    for number, (out, reference, (shape, dtype), tolerance) in enumerate(parts):
        verdict = compare(out, reference.reshape(shape), dtype, tolerance)
        if verdict.error and len(outputs) > 1:
            verdict = replace(verdict, error=f"output {number}: {verdict.error}")
        verdicts.append(verdict)
    error = next((verdict.error for verdict in verdicts if verdict.error), None)
    return Verdict(
        max(verdict.max_abs_err for verdict in verdicts), max(v.max_rel_err for v in verdicts), error
    )


def compare(out: object, reference: torch.Tensor, dtype: torch.dtype, tolerance: Tolerance) -> Verdict:
    """Compare an output with the float64 or exact reference of the same shape.

    An element is right if ``|out - ref| <= atol + rtol * |ref|``, or both are NaN, or both are the same
    infinity, or the reference is beyond the dtype's largest value and the output is that infinity.
    """
    if not isinstance(out, torch.Tensor):
        return Verdict(0.0, 0.0, f"returned {type(out).__name__}, not a tensor")
    if out.shape != reference.shape:
        return Verdict(0.0, 0.0, f"shape is {tuple(out.shape)}, not {tuple(reference.shape)}")
    if out.dtype != dtype:
        return Verdict(0.0, 0.0, f"dtype is {out.dtype}, not {dtype}")
    if out.device != reference.device:
        return Verdict(0.0, 0.0, f"is on {out.device}, not on {reference.device}")
    max_abs, max_rel, wrong, first = 0.0, 0.0, 0, None
    flat_out, flat_ref = out.reshape(-1), reference.reshape(-1)
    for start in range(0, flat_out.numel(), CHUNK):
        got, want = flat_out[start : start + CHUNK].double(), flat_ref[start : start + CHUNK].double()
        error = (got - want).abs_()
        limit = want.abs().mul_(tolerance.rtol).add_(tolerance.atol)
        bad = None
        # Nearly always all is finite and within the tolerance; what else is right is looked at only if not.
        if not bool(((error <= limit) & error.isfinite()).all()):
            # Rounding the reference turns what the dtype can't hold into the infinity it stands for.
            beyond = got.isinf() & (got == want.to(dtype).double())
            same = (got == want) | beyond | (got.isnan() & want.isnan())
            bad = ~same & ~((error <= limit) & error.isfinite())
            error = error.where(~same & error.isfinite(), 0.0)
        max_abs = max(max_abs, error.max().item())
        magnitude = want.abs()
        relative = error.div_(magnitude).where((magnitude > tolerance.atol) & magnitude.isfinite(), 0.0)
        max_rel = max(max_rel, relative.max().item())
        if bad is not None and (found := int(bad.sum())):
            wrong += found
            if first is None:
                offset = int(bad.nonzero()[0])
                first = (start + offset, got[offset].item(), want[offset].item())
    if first is None:
        return Verdict(max_abs, max_rel, None)
    where, got_value, want_value = first
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), reference.shape))
    return Verdict(
        max_abs,
        max_rel,
        f"{wrong} of {flat_out.numel()} elements are wrong, the first at {place}: "
        f"{got_value:.6g}, not {want_value:.6g}",
    )


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that torch hands out uninitialised holds NaN (or the largest integer) inside this context, so
    that an element which a provider never writes can't be right by chance."""
    # Not use_deterministic_algorithms, which imports Inductor: two seconds for a flag.
    was = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was)


def unchanged(inputs: Tensors, copies: Tensors) -> bool:
    """Whether the inputs still hold what they held when the copies were made, NaN included."""
    return all(torch.equal(_bytes(x), _bytes(copy)) for x, copy in zip(inputs, copies, strict=True))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)
