"""Verify outputs against a reference.

Floating-point outputs are compared with the float64 reference element by element, complex outputs by their
real and imaginary parts, and integers exactly. A kernel may replace this by its own comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

import torch

from .contract import Tolerance
from .loading import Tensors
from .timing.stopwatch import span_of

Declared = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of an output."""

CHUNK = 1 << 24
"""Elements compared at a time; it limits the memory of float64 temporaries."""

WHOLE = 2.0**53
"""float64 holds every integer below this number exactly."""

WRAPS = 2.0**62
"""A difference below this number is exact in int64, without wrap-around."""

DIGITS = range(6, 18)
"""The significant digits to try in a message, until two different numbers look different."""


@dataclass(frozen=True)
class Verdict:
    """The result of a verification: ``error`` is None if the output is right, else a clause that describes
    the error.

    ``max_abs_err`` and ``max_rel_err`` are taken over the elements where output and reference are finite; the
    relative error excludes elements whose reference is at most the absolute tolerance. ``used`` is the
    largest error as a share of its tolerance, excluding elements with zero tolerance. All three are 0 if the
    kernel has its own comparison.
    """

    max_abs_err: float
    max_rel_err: float
    error: str | None
    used: float = 0.0


@dataclass(frozen=True)
class Expected:
    """The reference's outputs, and the declared shape, dtype and tolerance of each output. ``compare`` is the
    kernel's own comparison, if it has one: it returns a sentence that describes the error, or None.
    """

    reference: Tensors
    declared: tuple[Declared, ...]
    tolerances: tuple[Tolerance, ...]
    compare: Callable[[Tensors], str | None] | None = None


def unfit(reference: Tensors, declared: Sequence[Declared]) -> str | None:
    """Return the reason why a reference can't be used for a comparison, as a clause, or None: a wrong number
    of outputs, a wrong shape, inexact integers."""
    if len(reference) != len(declared):
        return f"gives {len(reference)} outputs, where outputs() declares {len(declared)}"
    for number, (one, (shape, dtype)) in enumerate(zip(reference, declared, strict=True)):
        which = f"output {number}" if len(declared) > 1 else "an output"
        if not isinstance(one, torch.Tensor):
            return f"gives {which} that is {type(one).__name__}, not a tensor"
        if tuple(one.shape) != shape:
            return f"gives {which} of shape {tuple(one.shape)}, where outputs() declares {shape}"
        if one.dtype.is_complex and not dtype.is_complex:
            return f"gives {which} as {one.dtype}, where outputs() declares {dtype}"
        if one.is_floating_point() and not (dtype.is_floating_point or dtype.is_complex):
            wide = one.double().abs()
            if bool(((wide >= WHOLE) & wide.isfinite()).any()):
                return (
                    f"gives {which} of {dtype} as {one.dtype}, which does not hold every whole number beyond "
                    "2**53: let it give integers"
                )
    return None


def compare_all(outputs: Tensors, expected: Expected) -> Verdict:
    """Compare all outputs with the reference. The error describes the first wrong output."""
    if len(outputs) != len(expected.declared):
        return Verdict(0.0, 0.0, f"returned {len(outputs)} outputs, not {len(expected.declared)}")
    if expected.compare is not None:
        device = next((one.device for one in expected.reference), torch.device("cpu"))
        for number, (out, declared) in enumerate(zip(outputs, expected.declared, strict=True)):
            if found := _fault_of(out, declared, device):
                return Verdict(0.0, 0.0, _numbered(found, number, len(outputs)))
        return Verdict(0.0, 0.0, expected.compare(outputs))
    verdicts = []
    parts = zip(outputs, expected.reference, expected.declared, expected.tolerances, strict=True)
    for number, (out, reference, (_, dtype), tolerance) in enumerate(parts):
        verdict = compare(out, reference, dtype, tolerance)
        if verdict.error:
            verdict = replace(verdict, error=_numbered(verdict.error, number, len(outputs)))
        verdicts.append(verdict)
    error = next((verdict.error for verdict in verdicts if verdict.error), None)
    return Verdict(
        max(verdict.max_abs_err for verdict in verdicts),
        max(verdict.max_rel_err for verdict in verdicts),
        error,
        max(verdict.used for verdict in verdicts),
    )


def _numbered(error: str, number: int, outputs: int) -> str:
    return f"output {number}: {error}" if outputs > 1 else error


def compare(out: object, reference: torch.Tensor, dtype: torch.dtype, tolerance: Tolerance) -> Verdict:
    """Compare an output with a reference in float64, or in integers.

    An element is right if ``|out - ref| <= atol + rtol * |ref|``, if both are NaN, if both are the same
    infinity, or if the reference exceeds the dtype's largest value and the output equals the reference
    rounded to the dtype. Both parts of a complex number must be right. Integers are subtracted as integers if
    the reference has integers, too.
    """
    if not isinstance(out, torch.Tensor):
        return Verdict(0.0, 0.0, f"returned {type(out).__name__}, not a tensor")
    if out.shape != reference.shape:
        return Verdict(0.0, 0.0, f"shape is {tuple(out.shape)}, not {tuple(reference.shape)}")
    if out.dtype != dtype:
        return Verdict(0.0, 0.0, f"dtype is {out.dtype}, not {dtype}")
    if out.device != reference.device:
        return Verdict(0.0, 0.0, f"is on {out.device}, not on {reference.device}")
    flat_out, flat_ref = out.reshape(-1), reference.reshape(-1)
    parts = 1
    if dtype.is_complex:
        parts = 2
        flat_out, flat_ref = _parts(flat_out), _parts(flat_ref.to(torch.complex128))
    max_abs, max_rel, used, wrong, first = 0.0, 0.0, 0.0, 0, None
    for start in range(0, flat_out.numel(), CHUNK):
        got, want = flat_out[start : start + CHUNK], flat_ref[start : start + CHUNK]
        error, magnitude = _error(got, want), want.double().abs()
        limit = (magnitude * tolerance.rtol).add_(tolerance.atol)
        bad = None
        # Usually all errors are finite and within the tolerance; only otherwise look for special values.
        if not bool(((error <= limit) & error.isfinite()).all()):
            same = _same(got, want)
            bad = ~same & ~((error <= limit) & error.isfinite())
            error = error.where(~same & error.isfinite(), 0.0)
        max_abs = max(max_abs, error.max().item())
        used = max(used, (error / limit).where((limit > 0) & limit.isfinite(), 0.0).max().item())
        relative = error.div_(magnitude).where((magnitude > tolerance.atol) & magnitude.isfinite(), 0.0)
        max_rel = max(max_rel, relative.max().item())
        if bad is not None and (found := int(bad.view(-1, parts).any(dim=1).sum())):
            wrong += found
            if first is None:
                offset = int(bad.nonzero()[0])
                # Integers of a reference for uint64 keep its bits in int64.
                is_signed = dtype != torch.uint64 or want.is_floating_point()
                right = want[offset] if is_signed else want[offset].to(torch.int64).view(torch.uint64)
                first = (start + offset, got[offset].item(), right.item())
    if first is None:
        return Verdict(max_abs, max_rel, None, used)
    where, got_value, want_value = first
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(where // parts), reference.shape))
    part = "" if parts == 1 else f"the {('real', 'imaginary')[where % parts]} part is "
    return Verdict(
        max_abs,
        max_rel,
        f"{wrong} of {reference.numel()} elements are wrong, the first at {place}: "
        f"{part}{unlike(got_value, want_value)}",
        used,
    )


def unlike(got: float, want: float) -> str:
    """Return ``got, not want`` with enough digits to distinguish the two numbers."""
    if isinstance(got, int) and (isinstance(want, int) or want.is_integer()):
        return f"{int(got)}, not {int(want)}"
    for digits in DIGITS:
        texts = f"{got:.{digits}g}", f"{want:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return f"{texts[0]}, not {texts[1]}"


def _parts(x: torch.Tensor) -> torch.Tensor:
    """Return the real and imaginary parts of a complex vector, interleaved."""
    return torch.view_as_real(x.resolve_conj()).reshape(-1)


def _error(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return the absolute errors of elements, as float64."""
    error = (got.double() - want.double()).abs_()
    if not _is_whole(got.dtype) or not _is_whole(want.dtype):
        return error
    exact = integers(got).sub(integers(want)).double().abs_()
    return exact.where(error < WRAPS, error)


def _same(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements that are right for any tolerance: equal values, equal infinities, NaN for
    NaN, and correctly rounded overflow."""
    if _is_whole(got.dtype) and _is_whole(want.dtype):
        return integers(got) == integers(want)
    wide, true = got.double(), want.double()
    same = (wide == true) | (wide.isnan() & true.isnan())
    if not got.is_floating_point():
        return same
    # Rounding maps a reference beyond the dtype's range to infinity, NaN or the largest value.
    rounded = true.to(got.dtype).double()
    beyond = true.abs() > torch.finfo(got.dtype).max
    return same | (beyond & ((wide == rounded) | (wide.isnan() & rounded.isnan())))


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def integers(x: torch.Tensor) -> torch.Tensor:
    """Return integers or booleans as int64; uint64 keeps its bits."""
    return x.view(torch.int64) if x.dtype == torch.uint64 else x.to(torch.int64)


def narrowed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the reference rounded to an output's dtype; integers wrap around."""
    if not _is_whole(x.dtype) or not _is_whole(dtype) or dtype == torch.bool:
        return x.to(dtype)
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return integers(x).to(signed).view(dtype)


PREFIX = 4096
"""Leading elements that are compared first; they reveal nearly every wrong answer."""


def any_answer(expected: Expected, inputs: Tensors, other: Tensors) -> str | None:
    """Return the name of a trivial answer that would pass the verification, or None. The trivial answers are
    zeros, the mean, an input, and ``other``: the reference's outputs for other inputs."""
    if expected.compare is not None and unfit(expected.reference, expected.declared):
        return None  # the kernel's comparison uses a reference that is not an output
    answers: dict[str, Callable[[int], Iterator[torch.Tensor]]] = {
        "zeros": lambda i: iter([expected.reference[i].new_zeros(1)]),
        "the mean": lambda i: iter([_mean(expected.reference[i])]),
        "an input": lambda i: (x.reshape(-1) for x in inputs if x.numel() == expected.reference[i].numel()),
        "the answer to other inputs": lambda i: iter([other[i].reshape(-1)]),
    }
    for name, answer in answers.items():
        found = [_first_right(answer(i), i, expected) for i in range(len(expected.declared))]
        outputs = tuple(one for one in found if one is not None)
        if len(outputs) == len(found) and compare_all(outputs, expected).error is None:
            return name
    return None


def _first_right(answers: Iterator[torch.Tensor], number: int, expected: Expected) -> torch.Tensor | None:
    """Return the first answer whose leading elements pass as output ``number``, in full, or None. With the
    kernel's own comparison return the first answer of a fitting type."""
    shape, dtype = expected.declared[number]
    for answer in answers:
        if (answer.dtype.is_complex and not dtype.is_complex) or (0 not in shape and not answer.numel()):
            continue
        # A single number is broadcast to all elements.
        flat = answer.expand(prod(shape)) if answer.numel() == 1 else answer
        want = expected.reference[number].reshape(-1)[:PREFIX]
        got = narrowed(flat[:PREFIX], dtype)
        if (
            expected.compare is not None
            or compare(got, want, dtype, expected.tolerances[number]).error is None
        ):
            return narrowed(flat, dtype).reshape(shape)
    return None


def _mean(reference: torch.Tensor) -> torch.Tensor:
    """Return the mean of an output, rounded for integers and booleans. Return an empty tensor for an output
    of one element, whose mean is the answer itself."""
    if reference.numel() < 2:
        return reference.new_empty(0).reshape(-1)
    if reference.is_floating_point() or reference.is_complex():
        return reference.mean().reshape(1)
    return reference.double().mean().round().to(torch.int64).reshape(1)


def fault(outputs: Tensors, declared: Sequence[Declared], inputs: Tensors, in_place: bool) -> str | None:
    """Return the reason why outputs are invalid before their values are compared, as a clause, or None.
    Outputs must be plain tensors of the declared shape and dtype, on the inputs' device, in memory of their
    own.

    With ``in_place`` the outputs may be inputs.
    """
    if len(outputs) != len(declared):
        return f"returned {len(outputs)} outputs, not {len(declared)}"
    device = next((x.device for x in inputs), None)
    taken = [] if in_place else [(_memory(x), "an input") for x in inputs]
    for number, (out, one) in enumerate(zip(outputs, declared, strict=True)):
        if found := _fault_of(out, one, device or out.device):
            return _numbered(found, number, len(outputs))
        begin, end = _memory(out)
        for (other_begin, other_end), name in taken:
            if begin < other_end and other_begin < end:
                return _numbered(f"lies in the memory of {name}", number, len(outputs))
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
    """Return the first address of a tensor's memory, and the address after its last byte."""
    return x.data_ptr(), x.data_ptr() + span_of(x) * x.itemsize


def warm_up(device: torch.device) -> None:
    """Create the device's context and load the code of the comparison ahead of the first use."""
    x = torch.ones(8, device=device)
    compare(x.square(), x.double(), x.dtype, Tolerance(rtol=0.0, atol=0.0))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside this context torch fills uninitialised memory with NaN (or the largest integer), so that an
    element that a provider never writes is rarely right by chance."""
    # torch.use_deterministic_algorithms would import Inductor, which takes two seconds.
    was = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(was)


def unchanged(inputs: Tensors, copies: Tensors) -> bool:
    """Whether the inputs are bitwise equal to their copies."""
    return all(torch.equal(_bytes(x), _bytes(copy)) for x, copy in zip(inputs, copies, strict=True))


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)
