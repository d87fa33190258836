"""Fill the figures of the documentation from the results, so that no page holds one that was typed by hand.

    python -m pipeline.docs
    python -m pipeline.docs check=true
    python -m pipeline.docs docs=README.md

A page marks where a table goes by ``<!-- figures: NAME kernel=KERNEL workload=WORKLOAD -->`` and
``<!-- end -->``; what stands between them is written by this command. NAME is one of

    floor           the least time of each problem, by bytes and by operations, at the machine's ceilings
    best            the fastest provider at each problem, as reports/best.csv has it
    providers       every provider's fastest configuration at each problem, in microseconds: by finals where
                    a problem had any, else by the sweeps
    grid            the fastest provider at each problem, dtypes side by side, with its share of the ceiling
                    and the baseline's time over its own; how many of the large problems reach 97 %
    plans           the launch plan by which a kernel is the fastest at each problem, and the time of the
                    best of each other strategy over that, by the sweeps
    against         each provider that is not ours: its time over that of our fastest, as geometric mean and
                    the least, and at which problems it is the faster, by the sweeps
    ratios          the fastest of ours at each problem by finals, and the others' times over its, with their
                    verdicts and geometric means; ``each=torch:0.97``, ``mean=torch:1.0`` and
                    ``each=ceiling:0.9`` add a sentence that says where such a share is met
    dispatched      what a caller gets at these problems, by how it was chosen: its time over that of the
                    fastest of ours, by finals, as geometric mean and at most
    sustained       the same after two seconds of the same work
    steps           the rate of each provider that is named, in that order, and over that of the one before;
                    by finals where a problem had any, else by the sweeps
    map             the fastest provider over the workload's x axis and its other numbers, and how many times
                    as long the baseline takes
    configurations  what each configuration takes at each problem, in microseconds, by the sweeps
    launches        what a call launches, and what it takes on the device and on the host
    counters        what ncu counted, what warps wait for most, and the hint that promises most
    traffic         the bytes of device memory that a call reads and writes, by ncu
    finals          all kernels' newest finals, without a kernel or a workload: the fastest of ours, and how
                    many times as long the baseline, torch.compile and the best peer take, the fastest of
                    all that were not written here; with ``problems=largest`` only of each dtype's problem
                    of the most operations, and the problems where another is faster by more than 1 %
    gpus            all kernels on each pair of GPUs, without a kernel or a workload: the ratio of their
                    times beside that of their ceilings, by what bounds the problems

``columns=[256,4096]`` leaves a workload the problems with these values, and ``provider=[torch,cuda]`` the
table these providers. ``workload=[quick,decode]`` takes the problems of several, by their numbers. The same
results give the same text on every machine; what a CPU gave is in none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.contract import Work
from pipeline import UserError, unknown
from pipeline.command.options import DocsConfig
from pipeline.command.run import run_stage, say
from pipeline.points import catalog, notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.reporting import (
    best,
    evidence_figures,
    gpus,
    gpus_section,
    grid_figures,
    losses,
    ranking,
    ratio_figures,
    shares,
)
from pipeline.reporting.best import Row
from pipeline.reporting.evidence_figures import FigureSelection, markdown
from pipeline.reporting.field import HeadToHead, head_to_heads, head_to_heads_of_finals, rivals_of
from pipeline.reporting.frames import best_configurations, comparable, frame, frame_of_finals
from pipeline.reporting.numbers import RATES, microseconds, number, percent, speedup
from pipeline.reporting.provider_map import Spot, provider_map
from pipeline.reporting.ratio_figures import AskedShare
from pipeline.reporting.rival_times import Environments, RivalTimes
from pipeline.store import evidence, finals, provenance, results
from pipeline.store.ceilings import Ceilings
from pipeline.store.evidence import Evidence
from pipeline.store.files import write_atomically
from pipeline.store.finals import Final, fastest_of_ours, written_by
from pipeline.store.results import Results

if TYPE_CHECKING:
    import pandas as pd

BEGIN = re.compile(r"^<!-- figures: (.*?) *-->$", re.MULTILINE)
END = "<!-- end -->"

NOTHING = "Nothing of this is measured yet."

FINAL = " §"
"""Marks a problem whose providers were measured side by side."""

ASKED = ("each=", "mean=")
"""How options begin that say what was asked of ours."""

LARGEST = "problems=largest"
"""Leaves a table of finals one problem of each kernel and dtype, and those at which another is faster."""

COMMIT = 7
"""Digits of a commit that a page shows."""


def run(config: DocsConfig) -> None:
    """Fill every page's blocks, or say which page is not as it would be. Raises UserError for a block that
    can't be filled, and with ``check`` for a page that is stale."""
    for place in config.docs:
        if not place.exists():
            raise UserError(f"docs={place} is neither a page nor a folder with pages.")
    figures = Figures(config.input, config.reports)
    pages = [
        page for place in config.docs for page in (sorted(place.rglob("*.md")) if place.is_dir() else [place])
    ]
    old = {page: page.read_text() for page in pages}
    new = {page: filled(text, page, figures) for page, text in old.items()}
    stale = [page for page in old if old[page] != new[page]]
    if config.check and stale:
        raise UserError(
            f"{', '.join(map(str, stale))} {'is' if len(stale) == 1 else 'are'} stale: the figures are not "
            f"those of {config.input} and {config.reports}. Run python -m pipeline.docs."
        )
    for page in stale:
        write_atomically(page, new[page].encode())
        say(f"{page}: its figures are new.")
    if not stale:
        places = ", ".join(map(str, config.docs))
        say(f"Every figure in {places} is that of {config.input} and {config.reports}.")


def filled(text: str, page: Path, figures: Figures) -> str:
    """A page with every block filled. Raises UserError, with the line, for a block that can't be."""
    pieces = []
    at = 0
    for begin in BEGIN.finditer(text):
        line = f"{page}, line {text.count(chr(10), 0, begin.start()) + 1}"
        end = text.find(END, begin.end())
        following = BEGIN.search(text, begin.end())
        if end < 0 or (following is not None and following.start() < end):
            raise UserError(f"{line}: the block has no {END} behind it.")
        try:
            table = figures.table(begin[1])
        except UserError as error:
            raise UserError(f"{line}: {error}") from error
        pieces += [text[at : begin.end()], f"\n\n{table}\n\n"]
        at = end
    return "".join([*pieces, text[at:]])


@dataclass(frozen=True)
class Request:
    """What a block asks for: the problems of workloads, in their order, by extent and words."""

    entry: Entry
    workloads: tuple[str, ...]
    problems: Mapping[tuple[str, str], Any]
    providers: tuple[str, ...] | None

    @classmethod
    def read(cls, words: Sequence[str]) -> Request:
        """Raises UserError for words that are no options of a block, or of the kernel."""
        options = dict(word.split("=", 1) for word in words if "=" in word)
        if len(options) < len(words) or not {"kernel", "workload"} <= options.keys():
            raise UserError("write NAME kernel=KERNEL workload=WORKLOAD, and options as NAME=[VALUE,VALUE].")
        entry = _entry(options.pop("kernel"))
        workloads = _list(options.pop("workload"))
        for workload in workloads:
            if workload not in entry.config.workloads:
                raise unknown(f"workload of {entry.name}", workload, entry.config.workloads)
        providers = _list(options.pop("provider")) if "provider" in options else None
        known = {one.name for one in entry.loaded.kernel.providers}
        for name in providers or ():
            if name not in known:
                raise unknown(f"provider of {entry.name}", name, sorted(known))
        dimensions = entry.loaded.kernel.dimensions()
        for name in options:
            if name not in dimensions:
                raise unknown(f"dimension of {entry.name}", name, dimensions)
        wanted = {name: _list(values) for name, values in options.items()}
        found = {}
        every = [problems.of_workload(entry, entry.config.workloads[one], {}) for one in workloads]
        ordered = chain.from_iterable(every)
        for problem in sorted(ordered, key=_sizes) if len(every) > 1 else ordered:
            values = problems.values_of(problem)
            if all(str(values[name]) in some for name, some in wanted.items()):
                point = Point(
                    kernel=entry.name,
                    provider=entry.loaded.kernel.baseline,
                    problem=problems.identity_of(problem),
                    parameters=Values(),
                )
                found[notation.extent(point), notation.words(point)] = problem
        return cls(entry, workloads, found, providers)

    @property
    def extents(self) -> list[str]:
        """The problems' numbers, each once."""
        return list(dict.fromkeys(extent for extent, _ in self.problems))

    @property
    def words(self) -> list[str]:
        """The problems' words, each once."""
        return list(dict.fromkeys(words for _, words in self.problems))

    @property
    def x(self) -> tuple[str, ...]:
        """The dimensions of the first workload's x axis."""
        x = self.entry.config.workloads[self.workloads[0]].x
        return self.entry.loaded.kernel.size if x == problems.SIZE else (x,)


@dataclass(frozen=True)
class Fastest:
    """A machine's fastest times of each provider, in microseconds, by problem; at which problems finals gave
    them, and at which commits. ``bounds`` are the problems and providers whose time is an upper bound, and
    ``doubts`` say why one is not to be trusted."""

    times: Mapping[tuple[str, str], Mapping[str, float]]
    held: Sequence[tuple[str, str]]
    commits: Sequence[str]
    bounds: Collection[tuple[tuple[str, str], str]]
    doubts: Mapping[tuple[tuple[str, str], str], str]

    def shown(self, place: tuple[str, str], provider: str) -> str:
        """A time, with its mark."""
        is_bound = (place, provider) in self.bounds
        mark = "!" * ((place, provider) in self.doubts and not is_bound)
        return microseconds(self.times[place].get(provider), is_bound) + mark

    def mark(self, place: tuple[str, str], *providers: str) -> str:
        """The mark of a ratio of these providers' times."""
        return "!" * any((place, provider) in self.doubts for provider in providers)

    def notes(self, providers: Collection[str], at: tuple[str, str] | None = None) -> list[str]:
        """The meaning of these providers' marks, by reason; at one problem, or at all."""
        found: dict[str, list[str]] = {}
        for (place, provider), why in self.doubts.items():
            if provider in providers and at in (None, place):
                found.setdefault(why, []).append(f"`{provider}` at {' '.join(filter(None, place))}")
        return [f"! Not to be trusted: {', '.join(some)}: {why}." for why, some in found.items()]

    def how(self, shown: int) -> str:
        """How they were measured, for a caption of so many problems: two sentences."""
        how = "By sweeps"
        if self.held:
            how = f"By finals at the {len(self.held)} of {shown} problems with{FINAL}, else by sweeps"
        at = ", ".join(f"`{commit[:COMMIT]}`" for commit in self.commits)
        return f"{how}, not side by side. Commit{'s' * (len(self.commits) > 1)} {at}."


@cache
def _entry(name: str) -> Entry:
    """A kernel's entry, which many blocks ask for."""
    return catalog.find(name)


def _numbers(request: Request, problem: Any) -> dict[str, int]:
    """A problem's numbers: those of the x axis, and those that are not at their defaults."""
    declared = request.entry.loaded.kernel.dimensions()
    return {
        name: value
        for name, value in problems.values_of(problem).items()
        if isinstance(value, int)
        and declared[name].type is int
        and (name in request.x or value != declared[name].default)
    }


def _sizes(problem: Any) -> tuple[int, ...]:
    """A problem's numbers, by which those of several workloads are in order."""
    return tuple(value for value in problems.values_of(problem).values() if type(value) is int)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.removeprefix("[").removesuffix("]").split(","))


class Figures:
    """The tables that blocks ask for, from a folder of results and the report made of it."""

    def __init__(self, input: Path, reports: Path) -> None:
        self.input = input
        self.reports = reports

    def table(self, words: str) -> str:
        """The text for a block of these words. Raises UserError for words that ask for nothing."""
        tables: dict[str, Callable[[Request], Iterator[str]]] = {
            "floor": self.floor,
            "best": self.best,
            "providers": self.providers,
            "grid": self.grid,
            "plans": self.plans,
            "against": self.against,
            "steps": self.steps,
            "dispatched": self.dispatched,
            "map": self.map,
            "configurations": self.configurations,
            "launches": self.launches,
            "counters": self.counters,
            "traffic": self.traffic,
        }
        name, *options = words.split() or [""]
        of_finals = {"ratios": "burst", "sustained": "sustained"}
        if name in of_finals:
            asked = [AskedShare.read(word) for word in options if word.startswith(ASKED)]
            options = [word for word in options if not word.startswith(ASKED)]
            tables[name] = partial(self.ratios, power=of_finals[name], asked=asked)
        of_all = {"finals": self.finals, "gpus": self.gpus}
        if name in of_all:
            if options == [LARGEST] and name == "finals":
                return "\n\n".join(self.finals(largest=True)) or NOTHING
            if options:
                known = f"no option but {LARGEST}" if name == "finals" else "no options"
                raise UserError(f"figures {name} takes {known}.")
            return "\n\n".join(of_all[name]()) or NOTHING
        if name not in tables:
            raise unknown("figures", name, [*tables, *of_finals, *of_all])
        return "\n\n".join(tables[name](Request.read(options))) or NOTHING

    def floor(self, request: Request) -> Iterator[str]:
        """The least times at each machine's ceilings."""
        for gpu in _gpus(self.loaded.gpus):
            if (ceilings := self.loaded.ceilings.get(gpu)) is None:
                continue
            least = {place: _least(request, one, ceilings) for place, one in request.problems.items()}
            limits = {limit for *_, limit in least.values()}
            if not limits:
                continue
            # One that is the same everywhere is said once.
            shown = 3 if len(limits) > 1 else 2
            columns = ("MB", "us", "limit")[:shown]
            header = [_x(request), *(f"{words}: {what}" for words in request.words for what in columns)]
            rows = [
                [
                    extent,
                    *(cell for w in request.words for cell in least.get((extent, w), ("",) * 3)[:shown]),
                ]
                for extent in request.extents
            ]
            note = "" if len(limits) > 1 else f"; {limits.pop()} are the limit of each"
            copy = f"a copy at {number(ceilings.copy_gbps, 4)} GB/s"
            yield f"*{self._name(gpu)}, {copy}{note}.*\n\n{markdown(header, rows, 1)}"

    def finals(self, largest: bool = False) -> Iterator[str]:
        """All kernels' newest finals, or those of each kernel's and dtype's ``largest`` problem."""
        for gpu in _gpus(one.gpu for one in self._met):
            shown = [one for one in self._met if one.gpu == gpu]
            if largest:
                most = _largest(shown)
                shown = [one for one in shown if one in most or one.lost]
            rows = [_held_line(one) for one in shown]
            commits = sorted({one.origin.commit for one in shown if one.origin is not None})
            at = ", ".join(f"`{commit[:COMMIT]}`" for commit in commits)
            header = ["kernel", "problem", "dtype", "fastest of ours", "us", "of ceiling"]
            header += ["baseline's time over ours", "torch.compile's", "best peer's"]
            notes = losses.doubts(shown)
            table = markdown(header, rows, 4)
            yield "\n\n".join([f"*{self._name(gpu)}, finals of commit {at}.*", table, *notes])

    def gpus(self) -> Iterator[str]:
        """All kernels on each pair of GPUs, by what bounds their problems."""
        common, others = gpus.compared(self._swept, self._finals)
        names = {slug: self._name(slug) for slug in _gpus(self.loaded.gpus)}
        found: dict[tuple[str, str], list[gpus.GpuGroup]] = {}
        for group in gpus.groups(common):
            found.setdefault((group.a, group.b), []).append(group)
        header = ["bound by", "kernels", "problems", "b's time over a's", "by ceilings"]
        for (a, b), some in found.items():
            rows = [
                [
                    *(one.bound, ", ".join(one.kernels), str(one.problems)),
                    *(speedup(one.ratio), speedup(one.by_ceilings)),
                ]
                for one in some
            ]
            yield f"*a is {names[a]}, b is {names[b]}.*\n\n{markdown(header, rows, 2)}"
        yield from gpus_section.left_out(others, names)
        if len(names) == 1:
            yield f"*Only {names.popitem()[1]} has results: there is no other GPU to set beside it.*"
        elif names and not common:
            yield f"*{gpus_section.NOTHING_IN_COMMON}*"

    def best(self, request: Request) -> Iterator[str]:
        """The fastest provider at each problem."""
        for gpu, here in self._best_rows(request):
            found = list(here.values())
            rates = list(dict.fromkeys(row["headline"] for row in found))
            header = [_x(request), "dtype", "best", "us", *(RATES[name] for name in rates)]
            header += ["of ceiling", f"x {found[0]['baseline']}", "commit"]
            rows = [
                [
                    row["problem"],
                    row["words"],
                    f"`{row['provider']} {row['configuration']}".rstrip() + "`",
                    best.time(row),
                    *(number(best.value(row[name])) if row["headline"] == name else "" for name in rates),
                    percent(best.value(row["ceiling_fraction"])),
                    best.ratio(row),
                    f"`{row['commit'][:COMMIT]}`",
                ]
                for row in found
            ]
            yield "\n\n".join([f"*{self._name(gpu)}.*", markdown(header, rows, 3), *best.notes(found)])

    def _best_rows(self, request: Request) -> Iterator[tuple[str, dict[tuple[str, str], Row]]]:
        """Of each machine that has any the rows of the report's best providers, by problem in their order."""
        path = self.reports / "best.csv"
        if not path.is_file():
            raise UserError(f"{path} is not there; run python -m pipeline.report.")
        for gpu in _gpus(self.loaded.gpus):
            every = [row for row in best.read(path, gpu) if row["kernel"] == request.entry.name]
            here = {(row["problem"], row["words"]): row for row in every}
            if found := {place: here[place] for place in request.problems if place in here}:
                yield gpu, found

    def grid(self, request: Request) -> Iterator[str]:
        """The fastest provider at each problem, its words side by side."""
        work = request.entry.loaded.kernel.work
        megabytes = {place: work(one).bytes / 1e6 for place, one in request.problems.items()}
        for gpu, rows in self._best_rows(request):
            commits = ", ".join(sorted({f"`{row['commit'][:COMMIT]}`" for row in rows.values()}))
            baseline = request.entry.loaded.kernel.baseline
            yield (
                f"*{self._name(gpu)}: the fastest by sweeps, not side by side, and the time of `{baseline}` "
                f"over its own. Of {commits}.*\n\n{grid_figures.grid(rows, _x(request), megabytes)}"
            )

    def plans(self, request: Request) -> Iterator[str]:
        """The launch plan that is the fastest at each problem, of each provider that can be asked for one."""
        for provider in request.entry.loaded.kernel.providers:
            declared = provider.variables().get(grid_figures.STRATEGY)
            if declared is not None and provider.name in (request.providers or [provider.name]):
                wanted = replace(self._wanted(request), providers=[provider.name])
                yield from grid_figures.plans(wanted, self.loaded.measurements, declared, _x(request))

    def against(self, request: Request) -> Iterator[str]:
        """The others beside our fastest, over all problems."""
        kernel = request.entry.loaded.kernel
        own = frozenset(one.name for one in kernel.providers if written_by(one) == "own")
        others = request.providers or [one.name for one in kernel.providers if one.name not in own]
        name = request.entry.name
        here = self._swept[self._swept["kernel"].eq(name)]
        met = head_to_heads(here, {name: own}, RivalTimes(here, (), {name: others}, self._environments))
        for gpu in _gpus(self.loaded.gpus):
            some = [one for one in met if one.gpu == gpu and (one.extent, one.words) in request.problems]
            if some:
                yield (
                    f"*{self._name(gpu)}, {len(some)} problems by sweeps, not side by side: the other's time "
                    f"over that of our fastest.*\n\n{ratio_figures.against(some, others)}"
                )

    def dispatched(self, request: Request) -> Iterator[str]:
        """What a caller gets beside our fastest."""
        for gpu, found in self._finals_of(request, "burst"):
            if table := ratio_figures.dispatched(found):
                commits = sorted({(row.origin.commit or "")[:COMMIT] for some in found for row in some})
                at = ", ".join(f"`{commit}`" for commit in commits)
                yield f"*{request.entry.name} on {self._name(gpu)}, finals of {at}.*\n\n{table}"

    def ratios(self, request: Request, power: str, asked: Sequence[AskedShare]) -> Iterator[str]:
        """The others beside our fastest, by finals."""
        kernel = request.entry.loaded.kernel
        others = request.providers or [one.name for one in kernel.providers if written_by(one) != "own"]
        wanted = len(request.problems)
        for gpu, found in self._finals_of(request, power):
            how, *tables = ratio_figures.ratios(found, others, asked, _x(request), wanted)
            after = " after two seconds of the same work" * (power == "sustained")
            caption = f"*{self._name(gpu)}, finals{after}, the other's time over ours, {how}*"
            yield "\n\n".join([caption, *tables])

    def _finals_of(self, request: Request, power: str) -> Iterator[tuple[str, list[list[Final]]]]:
        """Of each machine that has any the finals by problem, where one of ours is among them."""
        rows = [row for row in self._held if row.power == power and row.point.kernel == request.entry.name]
        for gpu in _gpus(row.origin.gpu for row in rows):
            at: dict[tuple[str, str], list[Final]] = {}
            for row in rows:
                if row.origin.gpu == gpu:
                    at.setdefault(evidence_figures.place(row.point), []).append(row)
            found = [at[one] for one in request.problems if one in at and fastest_of_ours(at[one])]
            if found:
                yield gpu, found

    def providers(self, request: Request) -> Iterator[str]:
        """Every provider's fastest time at each problem."""
        for gpu, fastest in self._of_machines(request):
            there = {name for some in fastest.times.values() for name in some}
            names = [one.name for one in request.entry.loaded.kernel.providers if one.name in there]
            rows = []
            for place, some in fastest.times.items():
                least = min(some.values(), default=0.0)
                texts = [fastest.shown(place, name) for name in names]
                equal = [some.get(name) == least for name in names]
                cells = [
                    f"**{text}**" if is_best else text for text, is_best in zip(texts, equal, strict=True)
                ]
                if some:
                    rows.append([place[0] + FINAL * (place in fastest.held), place[1], *cells])
            table = markdown([_x(request), "dtype", *(f"`{name}`" for name in names)], rows, 2)
            caption = f"*{self._name(gpu)}, us. {fastest.how(len(rows))} The fastest is bold.*"
            yield "\n\n".join([caption, table, *fastest.notes(names)])

    def steps(self, request: Request) -> Iterator[str]:
        """What each of the named providers gains on the one before. Raises UserError where none is named."""
        if request.providers is None:
            raise UserError("figures steps needs provider=[NAME,NAME], in the order of the steps.")
        kernel, workload = request.entry.loaded.kernel, request.workloads[0]
        rate = request.entry.headline(workload)
        for gpu, fastest in self._of_machines(request):
            for place, some in fastest.times.items():
                work = kernel.work(request.problems[place])
                done = work.bytes / 1e3 if rate == "gbps" else work.flops / 1e6
                known = [name for name in request.providers if name in some]
                rows = [
                    [
                        f"`{name}`",
                        number(done / some[name]),
                        speedup(some[before] / some[name]) + fastest.mark(place, before, name)
                        if before
                        else "",
                    ]
                    for before, name in zip([None, *known], known, strict=False)
                ]
                if rows:
                    table = markdown(["step", RATES[rate], "times the step before"], rows, 1)
                    how = (
                        "side by side, by finals" if place in fastest.held else "by sweeps, not side by side"
                    )
                    at = " ".join(filter(None, place))
                    commits = ", ".join(f"`{commit[:COMMIT]}`" for commit in fastest.commits)
                    caption = f"*{self._name(gpu)}, {at}, {how}, of {commits}.*"
                    yield "\n\n".join([caption, table, *fastest.notes(known, place)])

    def map(self, request: Request) -> Iterator[str]:
        """The fastest provider over a workload's x axis and its other numbers."""
        baseline = request.entry.loaded.kernel.baseline
        for gpu, fastest in self._of_machines(request):
            spots = [
                Spot(
                    _numbers(request, problem),
                    place[1],
                    fastest.times[place],
                    frozenset(name for name in fastest.times[place] if fastest.mark(place, name)),
                )
                for place, problem in request.problems.items()
            ]
            header, *rows = provider_map(spots, request.x, baseline)
            how = fastest.how(sum(bool(some) for some in fastest.times.values()))
            caption = f"*{self._name(gpu)}: the fastest provider, and the time of `{baseline}` over its own. "
            table = markdown(header, rows, len(header))
            shown = {min(one.times, key=one.times.__getitem__) for one in spots if one.times}
            yield "\n\n".join([f"{caption}{how}*", table, *fastest.notes(shown | {baseline})])

    def _of_machines(self, request: Request) -> Iterator[tuple[str, Fastest]]:
        """The providers' fastest times at each problem, of machines that have any. Providers that are gone
        since they were measured are left out."""
        names = request.providers or [one.name for one in request.entry.loaded.kernel.providers]
        for gpu in _gpus(self.loaded.gpus):
            places = {
                (extent, words): (request.entry.name, gpu, words, extent)
                for extent, words in request.problems
            }
            by_sweep, by_finals = (_times(table, places.values()) for table in self._best)
            timed = {one: by_finals.get(at) or by_sweep.get(at, {}) for one, at in places.items()}
            wanted = {
                one: {name: value for name, value in some.items() if name in names}
                for one, some in timed.items()
            }
            if any(wanted.values()):
                every = {(one, name): row for one, some in wanted.items() for name, row in some.items()}
                yield (
                    gpu,
                    Fastest(
                        {
                            one: {name: row["median_us"] for name, row in some.items()}
                            for one, some in wanted.items()
                        },
                        [one for one, at in places.items() if at in by_finals],
                        sorted({row["commit"] for some in timed.values() for row in some.values()}),
                        {one for one, row in every.items() if ranking.is_bound(row)},
                        {one: why for one, row in every.items() if (why := ranking.doubt(row))},
                    ),
                )

    def configurations(self, request: Request) -> Iterator[str]:
        """Every configuration's time at each problem."""
        rows = (row for row in self.loaded.measurements if not row.origin.gpu.startswith("cpu-"))
        return evidence_figures.configurations(self._wanted(request), rows, _x(request))

    def launches(self, request: Request) -> Iterator[str]:
        """What a call launches."""
        return evidence_figures.launches(self._wanted(request), self._evidence.profiles)

    def counters(self, request: Request) -> Iterator[str]:
        """What ncu counted."""
        return evidence_figures.counted(self._wanted(request), self._evidence.counters)

    def traffic(self, request: Request) -> Iterator[str]:
        """What a call reads and writes."""
        return evidence_figures.traffic(self._wanted(request), self._evidence.counters)

    def _wanted(self, request: Request) -> FigureSelection:
        return FigureSelection(request.entry.name, list(request.problems), request.providers, self._name)

    @cached_property
    def _evidence(self) -> Evidence:
        """The rows that say why."""
        return evidence.load(self.input, say, local=False)

    @cached_property
    def loaded(self) -> Results:
        """What GPUs gave."""
        if not self.input.is_dir():
            raise UserError(f"input={self.input} is not a folder with results.")
        found = results.load(self.input, say, local=False)
        return replace(found, measurements=tuple(shares.of_records(found.measurements, found.ceilings)))

    @cached_property
    def _best(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The fastest of each provider at each problem, by the sweeps and by the newest finals."""
        return best_configurations(self._swept), best_configurations(self._finals)

    @cached_property
    def _finals(self) -> pd.DataFrame:
        return frame_of_finals(row for row in self._held if row.power == "burst")

    @cached_property
    def _swept(self) -> pd.DataFrame:
        return frame(comparable(self.loaded.measurements))

    @cached_property
    def _every_final(self) -> list[Final]:
        """The finals of every run."""
        every = finals.load(self.input, say, local=False)
        return shares.of_records((row for rows in every.values() for row in rows), self.loaded.ceilings)

    @cached_property
    def _held(self) -> list[Final]:
        """The newest finals."""
        return finals.newest_with_ours(self._every_final)

    @cached_property
    def _met(self) -> list[HeadToHead]:
        """Ours beside all others, by finals."""
        providers: dict[str, set[str]] = {}
        for row in self._every_final:
            providers.setdefault(row.point.kernel, set()).add(row.point.provider)
        swept = self._swept[self._swept["kernel"].isin(providers.keys())]
        for kernel, provider in swept[["kernel", "provider"]].drop_duplicates().itertuples(index=False):
            providers[kernel].add(provider)
        rivals = {kernel: rivals_of(kernel, some) for kernel, some in providers.items()}
        times = RivalTimes(swept, self._every_final, rivals, self._environments)
        return head_to_heads_of_finals(self._every_final, (), times)

    @cached_property
    def _environments(self) -> Environments:
        return Environments(provenance.environments([self.input]), self.loaded.environments)

    def _name(self, gpu: str) -> str:
        environment = self.loaded.environments.get(gpu)
        return gpu if environment is None else environment.name


def _largest(some: Sequence[HeadToHead]) -> list[HeadToHead]:
    """The problems of the most operations, by kernel and words."""
    found: dict[tuple[str, str], tuple[int, HeadToHead]] = {}
    for one in some:
        kernel = catalog.find(one.kernel).loaded.kernel
        flops = kernel.work(problems.make(kernel.problem, one.problem)).flops
        if flops > found.get((one.kernel, one.words), (-1,))[0]:
            found[one.kernel, one.words] = flops, one
    return [one for _, one in found.values()]


def _held_line(versus: HeadToHead) -> list[str]:
    """A problem's finals: the fastest of ours, and the others' times over its."""
    kernel = catalog.find(versus.kernel).loaded.kernel

    def ratio(names: Iterable[str]) -> tuple[str, str]:
        known = [name for name in names if name in versus.rivals]
        best = min(known, key=lambda name: versus.rivals[name].ratio, default=None)
        return ("", "") if best is None else (f"`{best}` ", losses.ratio(versus.rivals[best]))

    compiled = [provider.name for provider in kernel.providers if provider.compiled]
    return [
        versus.kernel,
        versus.extent,
        versus.words,
        f"`{versus.ours.label}`",
        number(versus.ours.us),
        percent(versus.ceiling_fraction),
        ratio([kernel.baseline])[1],
        ratio(compiled)[1],
        "".join(ratio(versus.rivals)),
    ]


def _gpus(slugs: Iterable[str]) -> list[str]:
    """The machines that a page shows: a CPU is no model of one."""
    return sorted({slug for slug in slugs if not slug.startswith("cpu-")})


Place = tuple[str, str, str, str]
"""A kernel, a machine, a problem's words and its numbers."""


TIME_COLUMNS = [
    *("kernel", "gpu", "words", "extent", "provider", "median_us", "commit"),
    *("valid", "throttle", "invalid_reason"),
]


def _times(table: pd.DataFrame, places: Iterable[Place]) -> dict[Place, dict[str, Mapping[Any, Any]]]:
    """By place and provider the row of its time."""
    wanted = set(places)
    found: dict[Place, dict[str, Mapping[Any, Any]]] = {}
    # Of all kernels' rows few are asked for, and making a dictionary of each takes longest.
    asked = table["kernel"].isin({one for one, *_ in wanted}) & table["gpu"].isin(
        {one for _, one, *_ in wanted}
    )
    for row in table.loc[asked, TIME_COLUMNS].to_dict("records"):
        place = row["kernel"], row["gpu"], row["words"], row["extent"]
        if place in wanted:
            found.setdefault(place, {})[row["provider"]] = row
    return found


def _least(request: Request, problem: Any, ceilings: Ceilings) -> tuple[str, str, str]:
    """A problem's megabytes, its least time, and what limits that."""
    work: Work = request.entry.loaded.kernel.work(problem)
    bytes_us = work.bytes / ceilings.copy_gbps / 1e3
    known = ceilings.matmul_tflops
    operations_us = sum(n / known[name] / 1e6 for name, n in work.operations.items() if name in known)
    limit = "bytes" if bytes_us >= operations_us else "operations"
    return number(work.bytes / 1e6), number(max(bytes_us, operations_us)), limit


def _x(request: Request) -> str:
    """What the first column is called."""
    named = any("=" in extent for extent in request.extents)
    return "problem" if named else " = ".join(request.entry.loaded.kernel.size)


if __name__ == "__main__":
    run_stage("docs", DocsConfig, run)
