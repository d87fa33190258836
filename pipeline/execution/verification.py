"""Is the output right? Compared with the float64 reference, element by element, from poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from kernels import Tensors
from kernels.contract import Tolerance
from pipeline.timing.stopwatch import span_of

Declared = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of an output."""

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


def fault(outputs: Tensors, declared: Sequence[Declared], inputs: Tensors, in_place: bool) -> str | None:
    """What keeps outputs from being looked at: they have to be plain tensors of the declared shape and dtype,
    on the device of the inputs, in memory of their own. None if nothing does.

    A call that is ``in_place`` gives inputs as its outputs.
    """
    if len(outputs) != len(declared):
        return f"returned {len(outputs)} outputs, not {len(declared)}"
    device = next((x.device for x in inputs), None)
    taken = [] if in_place else [(_memory(x), "an input") for x in inputs]
    for number, (out, one) in enumerate(zip(outputs, declared, strict=True)):
        which = f"output {number}: " if len(outputs) > 1 else ""
        if found := _fault_of(out, one, device or out.device):
            return which + found
        begin, end = _memory(out)
        for (other_begin, other_end), name in taken:
            if begin < other_end and other_begin < end:
                return f"{which}lies in the memory of {name}"
        taken.append(((begin, end), f"output {number}"))
    return None


def _fault_of(out: object, declared: Declared, device: torch.device) -> str | None:
    shape, dtype = declared
    if type(out) is not torch.Tensor or out.layout != torch.strided:
        return f"returned {type(out).__name__}, not a plain tensor"
    if tuple(out.shape) != tuple(shape):
        return f"shape is {tuple(out.shape)}, not {tuple(shape)}"
    if out.dtype != dtype:
        return f"dtype is {out.dtype}, not {dtype}"
    return None if out.device == device else f"is on {out.device}, not on {device}"


def _memory(x: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor spans."""
    return x.data_ptr(), x.data_ptr() + span_of(x) * x.itemsize


def warm_up(device: torch.device) -> None:
    """Load now the code that compares, and make the device's context."""
    x = torch.ones(8, device=device)
    compare(x.square(), x.double(), x.dtype, Tolerance(rtol=0.0, atol=0.0))


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
