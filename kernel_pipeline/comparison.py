"""``compare`` times functions side by side in rounds and gives verdicts; ``bench_grid`` times functions over
sizes.

A round times every function once. Every other round runs in the opposite order (ABBA), so that a device that
gets slower affects all functions alike. The ratios of the times within rounds give an interval and a verdict
(see ``statistics``). All rounds run in this process, so the interval does not include the noise from process
to process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal

from . import known_ceilings
from .arguments import BenchError, Make, made
from .bench_options import check_functions, check_margin, check_names, check_rounds, check_tolerance
from .bench_result import BenchResult
from .benchmark import settings_of, stopwatch, timed, with_rates
from .checking import Tolerances
from .statistics.verdicts import Estimate, Rule, Verdict, estimate, scipy_stats, verdicts
from .subject import subject

Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Contender:
    """A function's times, compared with the first function's.

    ``results`` has one result per round. ``ratio`` is the function's time divided by the first function's.
    ``verdict`` is ``faster``, ``slower``, ``same`` (within the margin) or ``undecided``. The first function,
    and a function without valid pairs of times, have neither; ``without`` gives the reason.
    """

    name: str
    results: tuple[BenchResult, ...]
    ratio: Estimate | None = None
    verdict: Verdict | None = None
    without: str = ""

    @property
    def median_us(self) -> float:
        """The median of the rounds' medians, in microseconds."""
        return median(result.median_us for result in self.results)

    @property
    def why(self) -> str:
        """The reason why a round's time can't be trusted; empty if all can."""
        return next((result.why for result in self.results if not result.valid), "")


class _Table(ABC):
    """A result that prints as a table, as text and in a notebook."""

    @abstractmethod
    def _rows(self) -> list[list[str]]:
        """Return the table's cells; the first row is the heading."""

    @property
    def note(self) -> str:
        """A sentence below the table; empty if there is none."""
        return ""

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return the results as a text table; ``?`` marks an invalid time in a grid."""
        return "\n".join(filter(None, [text_table(self._rows()), self.note]))

    def _repr_html_(self) -> str:
        return html_table(self._rows()) + (f"<p>{self.note}</p>" if self.note else "")


@dataclass(frozen=True, repr=False)
class BenchComparison(_Table):
    """Functions that were timed side by side; the others are compared with the first.

    ``looks`` is the number of rounds after which the verdicts were looked at. Intervals and verdicts have
    their nominal error rates if ``looks`` is 1.
    """

    contenders: tuple[Contender, ...]
    looks: int

    @property
    def note(self) -> str:
        """A sentence on the effect of repeated looks on intervals and verdicts."""
        if self.looks == 1:
            return ""
        rounds = len(self.contenders[0].results)
        return (
            f"The verdicts were computed {self.looks} times, so intervals hold the ratio in less than 90 % "
            f"of comparisons, and more than 5 % of verdicts are false. With rounds={rounds}, "
            f"most_rounds={rounds} they are computed once."
        )

    def __getitem__(self, name: str) -> Contender:
        """Return the contender with this name. Raises KeyError for an unknown name."""
        for one in self.contenders:
            if one.name == name:
                return one
        raise KeyError(name)

    def _rows(self) -> list[list[str]]:
        first = self.contenders[0].name
        rows = [["function", "us", f"x {first}", "interval", "verdict", "rounds"]]
        for one in self.contenders:
            ratio = one.ratio and (f"{one.ratio.ratio:.3f}", f"{one.ratio.low:.3f} to {one.ratio.high:.3f}")
            rows.append(
                [
                    one.name,
                    f"{one.median_us:.4g}",
                    *(ratio or ("", "")),
                    one.verdict or (f"not valid: {one.why}" if one.why else one.without),
                    str(len(one.results)),
                ]
            )
        return rows

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each contender and round. Raises ImportError without pandas."""
        return _frame(
            {
                "function": one.name,
                "round": number,
                "median_us": result.median_us,
                "low_us": result.interval[0],
                "high_us": result.interval[1],
                "valid": result.valid,
                "why": result.why,
            }
            for one in self.contenders
            for number, result in enumerate(one.results)
        )

    def plot(self) -> Any:
        """Return Matplotlib axes with each contender's time in every round. Raises ImportError without
        Matplotlib."""
        axes = _axes()
        for place, one in enumerate(self.contenders):
            times = [result.median_us for result in one.results]
            axes.plot(times, [place] * len(times), "o", alpha=0.5)
            axes.plot([one.median_us], [place], "|", markersize=16, color="black")
        axes.set_yticks(range(len(self.contenders)), [one.name for one in self.contenders])
        axes.invert_yaxis()
        axes.set_xlabel("time [us]")
        return axes


def compare(  # noqa: PLR0913
    functions: Functions,
    *inputs: Any,
    make: Make | None = None,
    keywords: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: Tolerances = None,
    cache: Literal["cold", "hot"] = "cold",
    margin: float = 0.01,
    rounds: int = 5,
    most_rounds: int = 20,
    backward: bool = False,
    context: bool = True,
    seconds: float = 0.05,
) -> BenchComparison:
    """Time functions side by side in rounds and decide which is faster.

    functions:
        Two or more functions by name. The others are compared with the first.
    margin:
        The verdict is ``same`` if the interval of the ratio lies within this relative margin of 1.
    rounds, most_rounds:
        ``compare`` runs ``rounds`` rounds, and continues up to ``most_rounds`` while a verdict is undecided.

    The other arguments are those of ``bench``. A function whose output is wrong gets no verdict.

    With ``rounds`` equal to ``most_rounds`` the verdicts are looked at once. Then a ratio's interval holds
    the ratio in 90 % of comparisons, and of the verdicts ``faster`` and ``slower`` at most 5 % are false
    (Benjamini and Hochberg). Otherwise they are looked at after each round from ``rounds`` on, until all are
    decided, and each look is another chance of error: with 16 looks a function whose time is off by exactly
    the margin is called ``slower`` in 17 % of comparisons, not in 5 %. ``looks`` of the result counts them.

    >>> x = torch.randn(512, 512)
    >>> compare({"square": torch.square, "twice": lambda x: x.square().sqrt()}, x)["twice"].verdict
    'slower'

    Raises BenchError as ``bench`` does, and for fewer than two functions or two rounds. Raises ImportError
    without SciPy.
    """
    if not isinstance(functions, Mapping) or len(functions) < 2:
        raise BenchError("compare takes two functions or more, by name: compare({'mine': f, 'torch': g}, x).")
    check_names(functions)
    check_functions(make=make, reference=reference)
    check_tolerance(tolerance)
    check_margin(margin)
    check_rounds(rounds, most_rounds)
    settings = settings_of(cache, seconds)
    scipy_stats()  # raise ImportError now, not after the rounds
    subjects = [subject(function, inputs, make, keywords, name) for name, function in functions.items()]
    found: dict[str, list[BenchResult]] = {name: [] for name in functions}
    rule = Rule(margin=float(margin))
    with stopwatch(subjects[0].device, settings, context) as watch:
        for number in range(most_rounds):
            for one in subjects if number % 2 == 0 else subjects[::-1]:
                found[one.name].append(timed(watch, one, reference, tolerance, backward))
            judged = _judged(found, rule)
            if number + 1 >= rounds and all(one.verdict != "undecided" for one in judged):
                break
    return BenchComparison(judged, looks=number + 2 - rounds)


def _judged(found: Mapping[str, Sequence[BenchResult]], rule: Rule) -> tuple[Contender, ...]:
    """Return the functions with their verdicts. A round is used if both of its times are valid; the verdict
    needs both from the same timer."""
    first, *others = found
    estimates, without = {}, {}
    for name in others:
        pairs = [
            pair for pair in zip(found[name], found[first], strict=True) if all(one.valid for one in pair)
        ]
        mixed = [{one.timer for one in pair} for pair in pairs if len({one.timer for one in pair}) > 1]
        if mixed:
            without[name] = (
                f"no verdict: timed by {' and '.join(sorted(mixed[0]))}, whose times can't be compared"
            )
        elif pairs:
            estimates[name] = estimate([mine.median_us / base.median_us for mine, base in pairs], rule)
        else:
            without[name] = f"no verdict: no round has valid times of both this function and {first}"
    said = verdicts(estimates, rule)
    return tuple(
        Contender(name, tuple(results), estimates.get(name), said.get(name), without.get(name, ""))
        for name, results in found.items()
    )


@dataclass(frozen=True, repr=False)
class BenchGrid(_Table):
    """The results of functions over sizes, by function name and size."""

    x: str
    sizes: tuple[Any, ...]
    results: Mapping[tuple[str, Any], BenchResult]
    unit: str

    @property
    def providers(self) -> tuple[str, ...]:
        """The functions' names, in their order."""
        return tuple(dict.fromkeys(name for name, _ in self.results))

    def _value(self, result: BenchResult) -> float:
        rate = {"GB/s": result.gbps, "TFLOP/s": result.tflops}.get(self.unit)
        return result.median_us if rate is None else rate

    def _rows(self) -> list[list[str]]:
        rows = [[self.x, *(f"{name} [{self.unit}]" for name in self.providers)]]
        for size in self.sizes:
            results = [self.results[name, size] for name in self.providers]
            rows.append(
                [str(size), *(f"{self._value(one):.4g}{'' if one.valid else ' ?'}" for one in results)]
            )
        return rows

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each function and size. Raises ImportError without pandas."""
        return _frame(
            {
                self.x: size,
                "provider": name,
                "median_us": result.median_us,
                "low_us": result.interval[0],
                "high_us": result.interval[1],
                "gbps": result.gbps,
                "tflops": result.tflops,
                "of_ceiling": result.of_ceiling,
                "valid": result.valid,
                "why": result.why,
            }
            for (name, size), result in self.results.items()
        )

    def plot(self) -> Any:
        """Return Matplotlib axes with a line for each function over the sizes. Raises ImportError without
        Matplotlib."""
        axes = _axes()
        for name in self.providers:
            axes.plot(
                self.sizes, [self._value(self.results[name, size]) for size in self.sizes], "o-", label=name
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel(self.x)
        axes.set_ylabel(f"time [{self.unit}]" if self.unit == "us" else self.unit)
        axes.legend()
        return axes


def bench_grid(  # noqa: PLR0913
    make: Callable[[Any, int], Any],
    *,
    sizes: Sequence[Any],
    providers: Functions,
    reference: Callable[..., Any] | None = None,
    tolerance: Tolerances = None,
    bytes: Callable[[Any], int] | None = None,
    flops: Callable[[Any], int] | None = None,
    cache: Literal["cold", "hot"] = "cold",
    x: str = "size",
    context: bool = True,
    seconds: float = 0.1,
) -> BenchGrid:
    """Time functions over sizes, for a table and a plot as ``triton.testing.perf_report`` gives them.

    make:
        ``make(size, seed)`` returns the inputs of a call.
    sizes, providers:
        The sizes, and the functions by name.
    bytes, flops:
        ``bytes(size)`` and ``flops(size)`` return the least bytes and the operations of a call. They set the
        grid's unit: TFLOP/s with ``flops``, GB/s with ``bytes`` alone, otherwise microseconds.
    x:
        The label of the sizes.

    The other arguments are those of ``bench``.

    >>> grid = bench_grid(
    ...     lambda n, seed: torch.randn(n), sizes=[1024, 4096], providers={"square": torch.square},
    ...     bytes=lambda n: 8 * n,
    ... )
    >>> grid.unit, len(grid.to_pandas())
    ('GB/s', 2)

    Raises BenchError as ``bench`` does.
    """
    if not sizes or not isinstance(providers, Mapping) or not providers:
        raise BenchError("bench_grid needs a size and a provider: sizes=[1024], providers={'mine': f}.")
    check_names([x, *providers])
    check_functions(make=make, reference=reference)
    check_tolerance(tolerance)
    settings = settings_of(cache, seconds)
    results: dict[tuple[str, Any], BenchResult] = {}
    device = made(partial(make, sizes[0]), 0).tensors[0].device
    ceilings = known_ceilings.of_device(device) if bytes or flops else False
    with stopwatch(device, settings, context) as watch:
        for size in sizes:
            for name, function in providers.items():
                one = subject(function, (), partial(make, size), None, name)
                found = timed(watch, one, reference, tolerance)
                work = bytes and bytes(size), flops and flops(size)
                results[name, size] = with_rates(found, one, *work, ceilings=ceilings)
    unit = "TFLOP/s" if flops else "GB/s" if bytes else "us"
    return BenchGrid(x, tuple(sizes), results, unit)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as a text table, with all columns but the first right-aligned; the first row is
    the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as an HTML table; the first row is the heading."""
    from html import escape

    heading, *rest = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rest)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install '.[compare]' in a checkout.") from error
    return pd.DataFrame(list(rows))


def _axes() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install '.[compare]' in a checkout.") from error
    return pyplot.subplots()[1]
