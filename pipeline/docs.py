"""Fill the tables of figures in the documentation from the results, so that no figure is typed by hand.

    python -m pipeline.docs
    python -m pipeline.docs check=true
    python -m pipeline.docs docs=README.md

This command writes the table between ``<!-- figures: NAME kernel=KERNEL workload=WORKLOAD -->`` and
``<!-- end -->``. NAME is one of

    providers   every provider's fastest time at each problem, in microseconds, and the least time at the
                machine's ceilings. The times come from finals if the problem had finals, else from sweeps
    shares      each provider's fastest time in sweeps, and the baseline's time over it, for each GPU that has
                times of all providers
    finals      the newest finals: our fastest provider, and the times of the baseline, torch.compile and the
                best provider that was not written here, each over ours. Without a kernel and a workload it
                shows all kernels; with ``problems=largest`` each kernel's largest problem and worst losses
    gpus        all kernels on each pair of GPUs, grouped by the bound of their problems

``columns=[256,4096]`` selects problems of a workload, and ``provider=[torch,cuda]`` columns of the table of
providers. ``workload=[quick,decode]`` takes the problems of several workloads. No table shows a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kernel_pipeline import problems
from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.point import Point

from . import as_typed
from .command.options import DocsConfig
from .command.run import run_stage, say
from .points import catalog, notation
from .points.catalog import Entry
from .reporting import gpus, losses
from .reporting.cells import distrust_notes, time_cell
from .reporting.content import describe
from .reporting.field import HeadToHead, finals_count, head_to_heads, head_to_heads_of_finals
from .reporting.frames import best_configurations
from .reporting.headlines import doubt
from .reporting.loading import LoadedResults, load
from .reporting.numbers import number, percent
from .reporting.others import Environments, OtherTimes
from .reporting.tables import TextTable

BEGIN = re.compile(r"^<!-- figures: (.*?) *-->$", re.MULTILINE)
END = "<!-- end -->"

NOTHING = "These problems have no results yet."
LARGEST = "problems=largest"

MOST_LINES = 16
"""The maximum number of lines per GPU in the table of the largest problems."""

FINAL = " §"
"""Marks a problem whose providers were measured side by side."""

COMMIT = 7
"""The number of digits of a commit's hash on a page."""


def run(config: DocsConfig) -> None:
    """Fill every page's blocks. Raises UserError for a wrong block, and with ``check`` for a stale page."""
    for place in config.docs:
        if not place.exists():
            raise UserError(f"docs={place} is neither a page nor a folder with pages.")
    figures = Figures(config.input)
    pages = [
        page for place in config.docs for page in (sorted(place.rglob("*.md")) if place.is_dir() else [place])
    ]
    old = {page: page.read_text() for page in pages}
    new = {page: filled(text, page, figures) for page, text in old.items()}
    stale = [page for page in old if old[page] != new[page]]
    if config.check and stale:
        raise UserError(
            f"{', '.join(map(str, stale))} {'is' if len(stale) == 1 else 'are'} stale: the figures differ "
            f"from {config.input}. Run {as_typed('docs')}."
        )
    for page in stale:
        write_atomically(page, new[page].encode())
        say(f"{page}: figures updated.")
    if not stale:
        say(f"Every figure in {', '.join(map(str, config.docs))} agrees with {config.input}.")


def filled(text: str, page: Path, figures: Figures) -> str:
    """Return a page with every block filled. Raises UserError with the line of a block that can't be."""
    pieces, at = list[str](), 0
    for begin in BEGIN.finditer(text):
        line = f"{page}, line {text.count(chr(10), 0, begin.start()) + 1}"
        end = text.find(END, begin.end())
        following = BEGIN.search(text, begin.end())
        if end < 0 or (following is not None and following.start() < end):
            raise UserError(f"{line}: the block has no {END} after it.")
        try:
            table = figures.text(begin[1])
        except UserError as error:
            raise UserError(f"{line}: {error}") from error
        pieces += [text[at : begin.end()], f"\n\n{table}\n\n"]
        at = end
    return "".join([*pieces, text[at:]])


@dataclass(frozen=True)
class Request:
    """The options of a block. ``problems`` are the workloads' problems in order, by extent and words."""

    entry: Entry
    problems: Mapping[tuple[str, str], Any]
    providers: tuple[str, ...]

    @classmethod
    def read(cls, words: Sequence[str]) -> Request:
        """Read the options of a block. Raises UserError for words that are not options of a block or of the
        kernel."""
        options = dict(word.split("=", 1) for word in words if "=" in word)
        if len(options) < len(words) or not {"kernel", "workload"} <= options.keys():
            raise UserError("write NAME kernel=KERNEL workload=WORKLOAD, and options as NAME=[VALUE,VALUE].")
        entry = catalog.find(options.pop("kernel"))
        workloads = _list(options.pop("workload"))
        known = [one.name for one in entry.loaded.kernel.providers]
        chosen = _list(options.pop("provider")) if "provider" in options else tuple(known)
        dimensions = entry.loaded.kernel.dimensions()
        for what, names, every in (
            ("workload", workloads, entry.config.workloads),
            ("provider", chosen, known),
            ("dimension", options, dimensions),
        ):
            for name in names:
                if name not in every:
                    raise unknown(f"{what} of {entry.name}", name, every)
        wanted = {name: _list(values) for name, values in options.items()}
        found = {}
        for workload in workloads:
            for problem in catalog.problems_of(entry, entry.config.workloads[workload], {}):
                values = problems.values_of(problem)
                if all(str(values[name]) in some for name, some in wanted.items()):
                    point = Point(kernel=entry.name, provider="any", problem=problems.identity_of(problem))
                    found[notation.extent(point), notation.words(point)] = problem
        return cls(entry, found, chosen)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.removeprefix("[").removesuffix("]").split(","))


class Figures:
    """Make the tables that blocks ask for, from a folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, words: str) -> str:
        """Return the text for a block with these words. Raises UserError for words that name no table."""
        name, *options = words.split() or [""]
        match name:
            case "providers":
                found = self.providers(Request.read(options))
            case "shares":
                found = self.shares(Request.read(options))
            case "finals" if not options or options == [LARGEST]:
                found = self.finals(self._met, is_largest=bool(options))
            case "finals":
                request = Request.read(options)
                place = {one: i for i, one in enumerate(request.problems)}
                of_kernel = (one for one in self._met if one.kernel == request.entry.name)
                some = [one for one in of_kernel if (one.extent, one.words) in place]
                found = self.finals(sorted(some, key=lambda one: place[one.extent, one.words]))
            case "gpus" if options:
                raise UserError("figures gpus takes no options.")
            case "gpus":
                found = self.gpus()
            case _:
                raise unknown("figures", name, ["providers", "shares", "finals", "gpus"])
        return "\n\n".join(found) or NOTHING

    def finals(self, met: Sequence[HeadToHead], *, is_largest: bool = False) -> Iterator[str]:
        """Yield the newest finals of each GPU."""
        for gpu in self._gpus:
            shown = [one for one in met if one.gpu == gpu]
            left, level = 0, ""
            if is_largest:
                most = sorted(_largest(shown), key=lambda one: one.is_level)
                given_up = [one for one in most[MOST_LINES:] if one.is_level]
                level = ", ".join(sorted(one.kernel for one in given_up))
                worst = [one for one in losses.losses([], shown) if one not in most]
                more = worst[: max(0, MOST_LINES - len(most))]
                chosen = [one for one in (*most, *more) if one not in given_up]
                shown, left = [one for one in shown if one in chosen], len(worst) - len(more)
            if shown:
                numbers = ("us", "of ceiling", "baseline / ours", "torch.compile / ours", "best peer / ours")
                columns = ("kernel", "problem", "dtype", "our fastest", *numbers)
                table = TextTable("", columns, [_finals_cells(one) for one in shown], numbers)
                at = _commits(one.origin.commit for one in shown if one.origin is not None)
                caption = f"{self._name(gpu)}, finals of {at}."
                if left:
                    caption += f" At {left} more problems another provider is faster by more than 1 %."
                if level:
                    caption += f" Level with all others, not shown: {level}."
                yield "\n\n".join([f"*{caption}*", table.markdown(has_code=True), *losses.doubts(shown)])

    def gpus(self) -> Iterator[str]:
        """Yield all kernels on each pair of GPUs, grouped by the bound of their problems."""
        common, others = gpus.compared(self.loaded.rows, self.loaded.final_rows)
        names = {slug: self._name(slug) for slug in self._gpus}
        if common:
            yield gpus.group_table(gpus.groups(common), names).markdown()
        yield from gpus.left_out(others, names)
        if len(names) == 1:
            yield f"*Only {names.popitem()[1]} has results, so there is no other GPU to compare it with.*"
        elif names and not common:
            yield f"*{gpus.NOTHING_IN_COMMON}*"

    def providers(self, request: Request) -> Iterator[str]:
        """Yield every provider's fastest time at each problem, and the least time by the ceilings."""
        kernel = request.entry.loaded.kernel
        x = "problem" if any("=" in extent for extent, _ in request.problems) else " = ".join(kernel.size)
        for gpu in self._gpus:
            by_sweep, by_finals = (_times(rows, request, gpu) for rows in self._best)
            by_finals = {at: one for at, one in by_finals.items() if finals_count(one, by_sweep.get(at, one))}
            every = ((place, by_finals.get(place) or by_sweep.get(place)) for place in request.problems)
            times = {place: some for place, some in every if some}
            there = {name for some in times.values() for name in some}
            names = [one.name for one in kernel.providers if one.name in there]
            if not names:
                continue
            ceilings = self.loaded.results.ceilings.get(gpu)
            is_mixed = 0 < len(by_finals) < len(times)
            rows = []
            for (extent, words), some in times.items():
                least = min(row["median_us"] for row in some.values())
                floor = _floor_us(request.entry, request.problems[extent, words], ceilings)
                mark = FINAL * (is_mixed and (extent, words) in by_finals)
                cells = [_time(some.get(name), least) for name in names]
                rows.append([extent + mark, words, number(floor), *cells])
            columns = [x, "dtype", "floor", *(f"`{name}`" for name in names)]
            table = TextTable("", columns, rows, numbers=columns[2:]).markdown(has_code=True)
            how = "Finals measured the providers side by side"
            if not by_finals:
                how = "The times come from sweeps, which do not measure side by side"
            elif is_mixed:
                how = f"Finals measured the problems with{FINAL} side by side, sweeps measured the others"
            at = _commits(row["commit"] for some in times.values() for row in some.values())
            caption = f"*{self._name(gpu)}, times in us at {at}. {how}. The fastest time is bold.*"
            notes = distrust_notes(
                (doubt(row), f"{' '.join(filter(None, place))}, `{name}`")
                for place, some in times.items()
                for name, row in some.items()
            )
            yield "\n\n".join([caption, table, *notes])

    def shares(self, request: Request) -> Iterator[str]:
        """Yield each provider's fastest time in the sweeps, and the baseline's time over it. A GPU that lacks
        one of the providers is left out."""
        baseline = request.entry.loaded.kernel.baseline
        for gpu in self._gpus:
            times = _times(self._best[0], request, gpu)
            if not {baseline, *request.providers} <= {name for some in times.values() for name in some}:
                continue
            shown = {
                " ".join(place): times[place]
                for place in request.problems
                if baseline in times.get(place, {})
            }
            columns = ["provider"]
            for problem in shown:
                columns += [f"{problem}, us", f"`{baseline}` / provider"]
            rows = []
            for name in request.providers:
                cells = [f"`{name}`"]
                for some in shown.values():
                    row = some.get(name)
                    share = None if row is None else some[baseline]["median_us"] / row["median_us"]
                    cells += ["" if row is None else time_cell(row), percent(share)]
                rows.append(cells)
            at = _commits(some[name]["commit"] for some in shown.values() for name in {*some})
            caption = f"*{self._name(gpu)}, times of sweeps at {at}.*"
            notes = distrust_notes(
                (doubt(row), f"{problem}, `{name}`")
                for problem, some in shown.items()
                for name, row in some.items()
            )
            table = TextTable("", columns, rows, numbers=columns[1:]).markdown(has_code=True)
            yield "\n\n".join([caption, table, *notes])

    @cached_property
    def loaded(self) -> LoadedResults:
        """The results of GPUs."""
        if not self.folder.is_dir():
            raise UserError(f"input={self.folder} is not a folder with results.")
        return load(self.folder, say, local=False)

    @property
    def _gpus(self) -> list[str]:
        """The GPUs that a page shows. CPUs are left out, because their names identify no model of a
        machine."""
        every = {*self.loaded.rows["gpu"], *(row.origin.gpu for row in self.loaded.finals)}
        return sorted(slug for slug in every if not slug.startswith("cpu-"))

    @cached_property
    def _best(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Each provider's fastest configuration at each problem, in the sweeps and in the newest finals."""
        return best_configurations(self.loaded.rows), best_configurations(self.loaded.final_rows)

    @cached_property
    def _met(self) -> list[HeadToHead]:
        """Our providers beside all others, in the newest finals."""
        every = self.loaded.every_final
        held = self.loaded.providers(sorted({row.point.kernel for row in every}))
        about = [describe(name, some) for name, some in held.items()]
        rows = self.loaded.rows[self.loaded.rows["kernel"].isin(held)]
        environments = Environments(self.loaded.runs, self.loaded.results.environments)
        times = OtherTimes(rows, every, {one.kernel: one.others for one in about}, environments)
        swept = head_to_heads(rows, {one.kernel: one.own for one in about}, times)
        return head_to_heads_of_finals(every, swept, times)

    def _name(self, gpu: str) -> str:
        environment = self.loaded.results.environments.get(gpu)
        return gpu if environment is None else environment.name


def _commits(some: Iterable[str]) -> str:
    digits = sorted({commit[:COMMIT] for commit in some})
    return f"commit{'s' * (len(digits) > 1)} {', '.join(f'`{one}`' for one in digits)}"


def _time(row: Mapping[str, Any] | None, least: float) -> str:
    """Return a time with its mark; the least time is bold."""
    if row is None:
        return ""
    text = time_cell(row)
    return f"**{text}**" if row["median_us"] == least else text


def _times(best: pd.DataFrame, request: Request, gpu: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the row of the fastest time on a machine, by problem and provider."""
    rows = best[best["kernel"].eq(request.entry.name) & best["gpu"].eq(gpu)]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows[rows["provider"].isin(request.providers)].to_dict("records"):
        if (row["extent"], row["words"]) in request.problems:
            found.setdefault((row["extent"], row["words"]), {})[row["provider"]] = row
    return found


def _floor_us(entry: Entry, problem: Any, ceilings: Ceilings | None) -> float | None:
    """Return a problem's least time in microseconds, by bytes and by operations; None without ceilings."""
    if ceilings is None:
        return None
    work = entry.loaded.kernel.work(problem)
    known = ceilings.matmul_tflops
    by_operations = sum(n / known[name] / 1e6 for name, n in work.operations.items() if name in known)
    return float(max(work.bytes / ceilings.copy_gbps / 1e3, by_operations))


def _largest(some: Sequence[HeadToHead]) -> list[HeadToHead]:
    """Return each kernel's problem with the most operations."""
    found: dict[str, tuple[int, HeadToHead]] = {}
    for one in some:
        kernel = catalog.find(one.kernel).loaded.kernel
        flops = kernel.work(problems.make(kernel.problem, one.problem)).flops
        if flops > found.get(one.kernel, (-1,))[0]:
            found[one.kernel] = flops, one
    return [one for _, one in found.values()]


def _finals_cells(versus: HeadToHead) -> list[str]:
    """Return the cells of a problem's finals: the fastest own provider, and the ratios of the others."""
    kernel = catalog.find(versus.kernel).loaded.kernel

    def ratio(names: Iterable[str]) -> tuple[str, str]:
        known = [name for name in names if name in versus.others]
        best = min(known, key=lambda name: versus.others[name].ratio, default=None)
        return ("", "") if best is None else (f"`{best}` ", losses.ratio(versus.others[best]))

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
        "".join(ratio(versus.others)),
    ]


if __name__ == "__main__":
    run_stage("docs", DocsConfig, run)
