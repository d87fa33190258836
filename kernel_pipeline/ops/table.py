"""Read and write the table of tuned configurations of one GPU: ``results/tuned/<gpu>.json``.

A table is JSON with one line for each problem. Writer and reader share the types below. For each kernel the
table holds the configurations, the measurements at each problem, and the regions in which the rule between
problems is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from ..declared import Value
from ..provider import Gpu

FORMAT = 6
"""The version of the table's format."""


LARGEST = {float: 1e300, int: 2.0**63}
"""Numbers in a table must be smaller than this in magnitude, by their declared type."""


LONGEST = 1e12
"""Times in microseconds and ratios in a table are at most this."""


class TableError(Exception):
    """A table that can't be used; the text is a clause with the reason."""


FEWEST = 5
"""The minimum number of problems for which a region's regret is used, without times predicted from steps."""


@dataclass(frozen=True)
class Configuration:
    """A provider with values for its parameters."""

    provider: str
    parameters: Mapping[str, Value]


@dataclass(frozen=True)
class TunedProblem:
    """The measurements at one problem.

    best:
        The label of the fastest configuration.
    us, interval_us, source:
        Its median time in microseconds with an interval. ``source`` says whether the time comes from the
        rounds of finals or, without finals, from the sweep.
    runner_up:
        The label of the fastest configuration of another provider; None if no other provider has a time.
    baseline_us:
        The time of the kernel's baseline, also of one that takes its inputs in another form.
    near:
        The time of each configuration divided by the fastest time, by label, up to ``growth.furthest``.
    failed:
        The labels of configurations without a right output at this problem.
    lacking:
        The labels of configurations that fit and have times at other problems of the workload, but no result
        here, as after an interrupted sweep. The rule estimates their ratios, which would count as slow.
    tolerance, max_abs_err:
        The tolerance for the output of ``best``, a pair of ``rtol`` and ``atol`` for each output, and its
        largest absolute error.
    commit:
        The commit of the measurement.
    """

    problem: Mapping[str, Value]
    within_l2: bool
    best: str
    us: float
    interval_us: Sequence[float]
    source: str
    runner_up: str | None
    runner_up_us: float | None
    baseline_us: float | None
    tolerance: Sequence[Sequence[float]]
    max_abs_err: float
    commit: str
    near: Mapping[str, float]
    failed: Sequence[str] = ()
    lacking: Sequence[str] = ()


@dataclass(frozen=True)
class TunedRegion:
    """The problems on one side of the L2 cache's size, with the rule's regret there.

    The regret of a choice is how much longer it takes than the fastest configuration. It is found by leaving
    out each tuned problem in turn.

    problems, regret_median, regret_p90:
        The number of problems that could be left out, and the median and 90th percentile of the regret over
        their choices.
    distance:
        The rule is trusted up to this many doublings from the nearest tuned problem; None if never.
    generalised, generalised_p90:
        The number of choices within that distance, and the 90th percentile of their regret.
    fallback:
        The configurations to call where the rule is neither trusted nor safer, by the words of a problem: the
        labels of providers' default configurations with the 90th percentile of their regret, the safest
        first. Only configurations safer than the baseline are listed, and the baseline last. The first that
        fits is called.
    """

    within_l2: bool
    problems: int
    regret_median: float | None
    regret_p90: float | None
    distance: float | None
    generalised: int
    generalised_p90: float | None
    fallback: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class TunedKernel:
    """A kernel's part of a table. ``sources`` holds the ``source.digest`` of each provider that the table
    names, ``measured`` the names of all providers that were measured. ``configurations`` are by label."""

    measured: Sequence[str]
    sources: Mapping[str, str]
    configurations: Mapping[str, Configuration]
    regions: Sequence[TunedRegion]
    problems: Sequence[TunedProblem]


@dataclass(frozen=True)
class Table:
    """A whole table.

    gpu, name:
        The GPU's slug and name.
    compute_capability, multiprocessors, shared_memory, l2_bytes:
        The GPU's properties: ``9.0``, a number, and the bytes of shared memory that a block may use and of
        the L2 cache. None, 0 and 0 for a CPU.
    environment:
        The machine's environment as far as it matters.
    rule:
        The digest of the rule that gave the regrets.
    """

    gpu: str
    name: str
    compute_capability: str | None
    multiprocessors: int
    shared_memory: int
    l2_bytes: int
    environment: Mapping[str, Any]
    rule: str
    kernels: Mapping[str, TunedKernel] = field(default_factory=dict)

    @property
    def properties(self) -> Gpu | None:
        """The GPU's properties, on which a choice depends; None for a CPU."""
        if self.compute_capability is None:
            return None
        major, minor = map(int, self.compute_capability.split("."))
        return Gpu((major, minor), self.multiprocessors, self.shared_memory, self.l2_bytes)


HEAD = ("gpu", "name", "compute_capability", "multiprocessors", "shared_memory", "l2_bytes")


def text(table: Table) -> str:
    """Return the table as JSON, with one line for each value, configuration, region and problem."""
    head = {"format": FORMAT, **{one: getattr(table, one) for one in HEAD}}
    lines = [f"  {_line(name)}: {_line(value)}," for name, value in head.items()]
    lines += [f'  "environment": {_line(table.environment)},', f'  "rule": {_line(table.rule)},']
    kernels = [_kernel_text(name, one) for name, one in sorted(table.kernels.items())]
    return "\n".join(["{", *lines, '  "kernels": {', ",\n".join(kernels), "  }", "}", ""])


def _kernel_text(name: str, one: TunedKernel) -> str:
    configurations = [f"{_line(label)}: {_line(_plain(each))}" for label, each in one.configurations.items()]
    parts = [
        f'      "measured": {_line(one.measured)}',
        f'      "sources": {_line(one.sources)}',
        f'      "configurations": {_lines("{", configurations, "}")}',
        f'      "regions": {_lines("[", [_line(_plain(each)) for each in one.regions], "]")}',
        f'      "problems": {_lines("[", [_line(_plain(each)) for each in one.problems], "]")}',
    ]
    return "\n".join([f"    {_line(name)}: {{", ",\n".join(parts), "    }"])


def _lines(begin: str, several: Sequence[str], end: str) -> str:
    return "\n".join([begin, ",\n".join(f"        {one}" for one in several), f"      {end}"])


def _plain(record: Any) -> dict[str, Any]:
    return {one.name: getattr(record, one.name) for one in fields(record)}


def _line(value: Any) -> str:
    return json.dumps(value, default=dict, ensure_ascii=False)


def read(path: Path, gpu: str) -> Table:
    """Read a table from a file. Raises TableError if it is unreadable, invalid, or of another GPU."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise TableError(f"can't be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise TableError("is not JSON") from error
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise TableError("is not a table of tuned configurations")
    if content["format"] != FORMAT:
        mend = "update it, or tune again" if content["format"] > FORMAT else "tune again"
        raise TableError(f"has format {content['format']}, and this version reads {FORMAT}: {mend}")
    if content.get("gpu") != gpu:
        raise TableError(f"was tuned on {content.get('gpu')}, not on {gpu}")
    try:
        return _table(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TableError(f"is incomplete or wrong ({type(error).__name__}: {error})") from error


def _table(content: Mapping[str, Any]) -> Table:
    kernels = {}
    for name, one in content["kernels"].items():
        configurations = {
            label: _record(Configuration, each) for label, each in one["configurations"].items()
        }
        regions = [_record(TunedRegion, each) for each in one["regions"]]
        problems = [_record(TunedProblem, each) for each in one["problems"]]
        parts = {"configurations": configurations, "regions": regions, "problems": problems}
        kernels[name] = _record(TunedKernel, one | parts)
        _check(kernels[name])
    head = {one: content[one] for one in (*HEAD, "environment", "rule")}
    made: Table = _record(Table, head | {"kernels": kernels})
    gpu = made.properties  # raises ValueError for an invalid compute capability
    if gpu is not None and gpu.multiprocessors < 1:
        raise ValueError(f"a GPU has {gpu.multiprocessors} multiprocessors")
    return made


def _record(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """Return a record of the given fields. Raises ValueError if a field is missing, unknown or of a wrong
    type."""
    declared = get_type_hints(kind)
    if given.keys() != declared.keys():
        raise ValueError(f"a {kind.__name__} has {', '.join(sorted(declared))}")
    for name, hint in declared.items():
        if not _is(given[name], hint):
            raise ValueError(f"{name} of a {kind.__name__} is {given[name]!s:.40}")
    return kind(**given)


def _is(value: object, hint: Any) -> bool:
    """Whether a value is of a declared type. Floats must fit float64, and integers int64."""
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is(value, one) for one in of)
    if origin is Mapping:
        pairs = value.items() if isinstance(value, dict) else [()]
        return all(len(pair) == 2 and all(map(_is, pair, of)) for pair in pairs)
    if origin is Sequence:
        return isinstance(value, list) and all(_is(one, of[0]) for one in value)
    if hint in LARGEST:
        kinds = (int, float) if hint is float else (int,)
        return type(value) in kinds and abs(cast("float", value)) < LARGEST[hint]
    return hint is Any or type(value) is hint


def _check(one: TunedKernel) -> None:
    """Check that every label names a configuration, that times and ratios are positive and no more than
    ``LONGEST``, and that intervals have two ends. Raises ValueError."""
    for problem in one.problems:
        times = [problem.us, *(us for us in (problem.baseline_us, problem.runner_up_us) if us is not None)]
        if not all(0 < number <= LONGEST for number in (*times, *problem.near.values())):
            raise ValueError(f"a time or ratio is not above 0 and up to {LONGEST:g}")
        if len(problem.interval_us) != 2:
            raise ValueError("an interval has not two ends")
        named = {problem.best, *problem.near}
        if missing := named - one.configurations.keys():
            raise ValueError(f"{sorted(missing)[0]} is not a configuration")
    for region in one.regions:
        named = {label for labels in region.fallback.values() for label in labels}
        if missing := named - one.configurations.keys():
            raise ValueError(f"{sorted(missing)[0]} is not a configuration")
