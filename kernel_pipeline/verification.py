"""Is the output right? Floats are compared with the float64 reference, element by element, complex numbers
part by part, integers exactly; or all of it as the kernel itself compares."""

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
"""Elements compared at a time, so that float64 temporaries stay small beside the tensors."""

WHOLE = 2.0**53
"""Below it float64 holds every whole number."""

WRAPS = 2.0**62
"""Integers that differ by less are subtracted in 64 bits, exactly."""

DIGITS = range(6, 18)
"""Of a number in a message: so many that two that differ look different."""


@dataclass(frozen=True)
class Verdict:
    """Whether an output is right; ``error`` is None exactly then.

    ``max_abs_err`` and ``max_rel_err`` are over the elements where both sides are finite; the relative
    error leaves out elements where the reference is smaller than the absolute tolerance. ``used`` is the
    largest share of the tolerance that an element takes, leaving out those that are allowed no error. Where
    the kernel itself compares, all three are 0.
    """

    max_abs_err: float
    max_rel_err: float
    error: str | None
    used: float = 0.0


@dataclass(frozen=True)
class Expected:
    """The right answer, and for each output its shape, dtype and tolerance. ``compare`` says what is wrong
    with outputs, where the kernel brings a comparison of its own."""

    reference: Tensors
    declared: tuple[Declared, ...]
    tolerances: tuple[Tolerance, ...]
    compare: Callable[[Tensors], str | None] | None = None


def unfit(reference: Tensors, declared: Sequence[Declared]) -> str | None:
    """What keeps a reference from being compared with: another number of outputs, another shape, no exact
    integers. None if nothing does."""
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
    """Compare every output with its reference; the first that is wrong says why."""
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
    """Compare an output with the float64 or exact reference of the same shape.

    An element is right if ``|out - ref| <= atol + rtol * |ref|``, or both are NaN, or both are the same
    infinity, or the reference is beyond the dtype's largest value and the output is what rounding makes of
    it. Both parts of a complex number have to be right. Integers are subtracted as integers, if the reference
    has integers.
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
        # Nearly always all is finite and within the tolerance; what else is right is looked at only if not.
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
                first = (start + offset, got[offset].item(), want[offset].item())
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
    """``got, not want`` with as many digits as tell the two apart; integers whole."""
    if isinstance(got, int) and (isinstance(want, int) or want.is_integer()):
        return f"{int(got)}, not {int(want)}"
    for digits in DIGITS:
        texts = f"{got:.{digits}g}", f"{want:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return f"{texts[0]}, not {texts[1]}"


def _parts(x: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts of a vector, in turn."""
    return torch.view_as_real(x.resolve_conj()).reshape(-1)


def _error(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """How far elements are from the reference's, as float64."""
    error = (got.double() - want.double()).abs_()
    if not _is_whole(got.dtype) or not _is_whole(want.dtype):
        return error
    exact = integers(got).sub(integers(want)).double().abs_()
    return exact.where(error < WRAPS, error)


def _same(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where elements are right however small the tolerance is."""
    if _is_whole(got.dtype) and _is_whole(want.dtype):
        return integers(got) == integers(want)
    wide, true = got.double(), want.double()
    same = (wide == true) | (wide.isnan() & true.isnan())
    if not got.is_floating_point():
        return same
    # Rounding the reference turns what the dtype can't hold into what stands for it.
    rounded = true.to(got.dtype).double()
    beyond = true.abs() > torch.finfo(got.dtype).max
    return same | (beyond & ((wide == rounded) | (wide.isnan() & rounded.isnan())))


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def integers(x: torch.Tensor) -> torch.Tensor:
    """Integers or flags as int64; of uint64 the same bits."""
    return x.view(torch.int64) if x.dtype == torch.uint64 else x.to(torch.int64)


def narrowed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A reference's numbers in an output's dtype: the right output, as near as the dtype has it."""
    if not _is_whole(x.dtype) or not _is_whole(dtype) or dtype == torch.bool:
        return x.to(dtype)
    signed = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return integers(x).to(signed).view(dtype)


PREFIX = 4096
"""Elements that show of nearly all answers that they are wrong."""


def any_answer(expected: Expected, inputs: Tensors, other: Tensors) -> str | None:
    """Which answer that takes no work would be found right: zeros, the mean, an input, or the answer to
    ``other`` inputs, which is another reference. None where none of these would."""
    if expected.compare is not None and unfit(expected.reference, expected.declared):
        return None  # the kernel compares with something that is no output
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
    """The first answer that is right as an output at its first elements; with a comparison of the kernel's,
    the first."""
    shape, dtype = expected.declared[number]
    for answer in answers:
        if (answer.dtype.is_complex and not dtype.is_complex) or (0 not in shape and not answer.numel()):
            continue
        # One number stands for all elements.
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
    """The mean of an output, rounded where it is one of integers or flags. That of a single number would be
    the answer itself: none."""
    if reference.numel() < 2:
        return reference.new_empty(0).reshape(-1)
    if reference.is_floating_point() or reference.is_complex():
        return reference.mean().reshape(1)
    return reference.double().mean().round().to(torch.int64).reshape(1)


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
    """The addresses that a tensor spans."""
    return x.data_ptr(), x.data_ptr() + span_of(x) * x.itemsize


def warm_up(device: torch.device) -> None:
    """Load now the code that compares, and make the device's context."""
    x = torch.ones(8, device=device)
    compare(x.square(), x.double(), x.dtype, Tolerance(rtol=0.0, atol=0.0))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that torch hands out uninitialised holds NaN (or the largest integer) inside this context, so
    that an element which a provider never writes is hardly ever right by chance."""
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
