"""``check``: compare a function with a reference over inputs of several distributions.

The reference computes the expected outputs from the same inputs in float64. A kernel that is right only for
the inputs that it is timed with is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch

from . import verification
from .arguments import Arguments, BenchError, Make, copied, equal, made, on_device, overlaps, tensors_of
from .bench_options import check_functions, check_tolerance
from .contract import Tolerance
from .loading import Tensors
from .verification import Verdict

Tolerances = Tolerance | tuple[float, float] | None
"""The error allowed against the reference: ``(rtol, atol)``, or None for the default of each dtype."""

ULPS = {torch.float64: 64.0, torch.float32: 16.0}
"""The default tolerance in units in the last place, by the output's dtype; ``FEW_ULPS`` for other dtypes. For
float64 the reference itself has rounding errors; a long sum in float32 is off by several units."""

FEW_ULPS = 2.0

SEEDS = (0, 1, 2)
"""The seeds whose inputs are used as ``make`` returns them."""


@dataclass(frozen=True)
class DistributionResult:
    """The verdict on one distribution of inputs, or the reason why it was skipped."""

    name: str
    verdict: Verdict | None
    skipped: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """The result of ``check``.

    ok:
        Whether all outputs were right for every distribution that was not skipped.
    worst:
        The largest error of an element as a share of its tolerance. Above 1 the element is wrong. Infinite
        for errors without a share, such as NaN or a wrong shape.
    where:
        The first wrong distribution and element; empty if all outputs are right.
    cases:
        The result of each distribution.

    The result counts as true if ``ok`` is true, so that ``assert check(...)`` fails for a wrong function.
    """

    ok: bool
    worst: float
    where: str
    cases: tuple[DistributionResult, ...]

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        if not self.ok:
            return f"wrong: {self.where}"
        tried = [case.name for case in self.cases if case.verdict]
        return f"right: {len(tried)} distributions of inputs; {self.worst:.0%} of the tolerance used at most"


def check(
    function: Callable[..., Any],
    *,
    make: Make,
    reference: Callable[..., Any],
    tolerance: Tolerances = None,
    keywords: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Compare a function with its reference over several distributions of inputs.

    make, keywords:
        ``make(seed)`` returns the positional arguments of a call, as for ``bench``; ``keywords`` are the
        keyword arguments.
    reference:
        A function that takes the same arguments, with floating-point tensors in float64, and returns the
        right outputs. A distribution for which it returns NaN is skipped.
    tolerance:
        The ``(rtol, atol)`` allowed: an element is right if ``|out - ref| <= atol + rtol * |ref|``. By
        default ``rtol`` is a few units in the last place of the output's dtype, and ``atol`` is ``rtol``
        times the reference's root mean square. Integers and booleans must then be equal.

    Memory that the function allocates is filled with NaN beforehand, so that elements that the function does
    not write are found.

    >>> check(torch.square, make=lambda seed: torch.randn(8), reference=lambda x: x * x).ok
    True

    Raises BenchError if the inputs, the reference or the tolerance can't be used for a comparison.
    """
    check_functions(are_optional=False, function=function, make=make, reference=reference)
    check_tolerance(tolerance)
    cases = []
    written: set[int] = set()
    for name, arguments in _distributions(make, keywords):
        expected = expect(reference, arguments)
        if any(bool(x.isnan().any()) for x in expected):
            cases.append(DistributionResult(name, None, "the reference gives NaN"))
            continue
        call = arguments.call(function)
        given = copied(arguments.tensors)
        with verification.poisoned_memory(), on_device(given[0].device):
            outputs = tensors_of(call(*given))
        if not outputs:  # the function overwrote its inputs, with equal values for some distributions
            pairs = enumerate(zip(given, arguments.tensors, strict=True))
            written |= {place for place, (x, old) in pairs if not equal(x, old)}
            outputs = tuple(given[place] for place in sorted(written))
        cases.append(DistributionResult(name, compared(outputs, expected, tolerance)))
    wrong = next((case for case in cases if case.verdict and case.verdict.error), None)
    used = [case.verdict.used for case in cases if case.verdict]
    if not used:
        raise BenchError("the reference gives NaN for all inputs that were tried: nothing can be compared.")
    return CheckResult(
        ok=wrong is None,
        worst=max(used) if wrong is None or max(used) > 1 else inf,
        where="" if wrong is None or wrong.verdict is None else f"{wrong.name}: {wrong.verdict.error}",
        cases=tuple(cases),
    )


def expect(reference: Callable[..., Any], arguments: Arguments) -> Tensors:
    """Return the outputs of a reference called with the arguments in float64 (complex128 for complex
    tensors)."""
    widened = tuple(map(wide, copied(arguments.tensors)))
    with on_device(widened[0].device):
        given = tensors_of(arguments.call(reference)(*widened))
    if not given:
        raise BenchError("reference= returned no tensor: return the expected outputs.")
    return tuple(x.detach() for x in given)


def compared(outputs: Tensors, expected: Tensors, tolerance: Tolerances) -> Verdict:
    """Compare outputs with the reference's. Returns the verdict on the first wrong output, or else on the
    output that uses the largest share of its tolerance."""
    if len(outputs) != len(expected):
        return Verdict(0.0, 0.0, f"returned {len(outputs)} outputs, where the reference has {len(expected)}")
    verdicts = [
        verification.compare(
            out.detach(), want.to(out.device), out.dtype, tolerance_for(out, want, tolerance)
        )
        for out, want in zip(outputs, expected, strict=True)
    ]
    wrong = next((one for one in verdicts if one.error), None)
    return wrong or max(verdicts, key=lambda one: one.used)


def tolerance_for(out: torch.Tensor, want: torch.Tensor, given: Tolerances = None) -> Tolerance:
    """Return the tolerance of an output with these right values: the given tolerance, or the default of the
    output's dtype.
    """
    if isinstance(given, Tolerance):
        return given
    if given is not None:
        rtol, atol = given
        return Tolerance(rtol=rtol, atol=atol)
    if not (out.is_floating_point() or out.is_complex()) or not want.numel():
        return Tolerance(rtol=0.0, atol=0.0)
    real = out.dtype.to_real() if out.is_complex() else out.dtype
    unit = ULPS.get(real, FEW_ULPS) * torch.finfo(real).eps
    sizes = want.abs().double()
    finite = sizes.isfinite()
    # Indexing by a mask would list four indices of 8 bytes for each element of a tensor with four dimensions.
    mean = sizes.masked_fill_(~finite, 0.0).square_().sum() / finite.sum().clamp(min=1)
    return Tolerance(rtol=unit, atol=unit * float(mean.sqrt()))


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return a floating-point tensor in float64, a complex tensor in complex128, and any other tensor
    unchanged.
    """
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def _distributions(make: Make, keywords: Mapping[str, Any] | None) -> Iterator[tuple[str, Arguments]]:
    """Yield the name and the inputs of each distribution. Integer and boolean tensors keep their values from
    ``make``."""
    for seed in SEEDS:
        yield f"inputs of seed {seed}", made(make, seed, keywords)
    for name, fill in DISTRIBUTIONS.items():
        arguments = made(make, SEEDS[0], keywords)
        yield name, replace(arguments, tensors=tuple(filled(x, fill) for x in arguments.tensors))


Fill = Callable[[torch.Tensor, torch.finfo], torch.Tensor]
"""Maps a tensor to a tensor with the values of a distribution, given the limits of the dtype."""


def filled(x: torch.Tensor, fill: Fill) -> torch.Tensor:
    """Return a copy of a tensor, filled by a distribution if it is floating-point."""
    (copy,) = copied((x,))
    if not x.is_floating_point():
        return copy
    # Few operations support 8-bit floats.
    values = fill(x.float() if x.itemsize == 1 else x, torch.finfo(x.dtype)).to(x.dtype)
    return values if overlaps(x) else copy.copy_(values)


def _one_hot(x: torch.Tensor, limits: torch.finfo) -> torch.Tensor:
    del limits
    if x.numel() == 0 or x.dim() == 0:
        return x
    hot = torch.zeros_like(x)
    places = torch.arange(x[..., 0].numel(), device=x.device) % x.shape[-1]
    return hot.scatter_(-1, places.view(*x.shape[:-1], 1), 1.0)


def _scaled(share: float) -> Fill:
    """Return a fill that multiplies by a power of the dtype's largest or smallest number. With an exponent of
    0.25 products of two values and sums of squares stay in range."""

    def fill(x: torch.Tensor, limits: torch.finfo) -> torch.Tensor:
        factor: float = limits.max**share if share > 0 else limits.tiny**-share
        return x * factor

    return fill


DISTRIBUTIONS: Mapping[str, Fill] = {
    "zeros": lambda x, limits: torch.zeros_like(x),
    "equal values": lambda x, limits: torch.full_like(x, 0.75),
    "sorted values": lambda x, limits: x.sort(dim=-1).values if x.dim() else x,
    "one-hot rows": _one_hot,
    "large values": _scaled(0.25),
    "small values": _scaled(-0.25),
}
"""The distributions of floating-point inputs besides the inputs that ``make`` returns."""
