"""All measurements of some folders as one table of data: of each point the newest row that can be
compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.points import notation
from pipeline.points.point import Point, order
from pipeline.reporting.frames import headline, place, x_name
from pipeline.reporting.reading import COUNTS, FLOATS, KINDS, NONE, Part, RecordFilter, read
from pipeline.store.record import Measurement

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Tabulated:
    """``rows`` are the measurements that can be compared as a table, in the order of points, with what of
    ``frames.COLUMNS`` a report shows, their ``environment``, and in ``origin`` the place of the record among
    ``examples`` that shares all that decides what is old about them. ``wanted`` are the records that were
    asked for, and ``count`` is how many measurements there are in all."""

    rows: pd.DataFrame
    examples: Sequence[Measurement]
    wanted: Sequence[Measurement]
    count: int


def tabulated(paths: Sequence[Path], wanted: RecordFilter, warn: Callable[[str], None]) -> Tabulated:
    """The rows of all ledgers, as ``results.load`` and ``frames.comparable`` choose them: of each point by
    each of the settings the last line of a ledger counts, of these the newest that was timed in the usual
    way."""
    gathered = _Gathered()
    for path, part in read(paths, wanted, warn):
        gathered.add(path, part)
    return gathered.table()


class _Gathered:
    """Parts of ledgers, with one list of kinds for all of them."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[Hashable, int]] = {name: {} for name in (*KINDS, "kernel", "file")}
        self.codes: dict[str, list[Any]] = {name: [] for name in self.kinds}
        self.numbers: dict[str, list[Any]] = {}
        self.examples: list[Measurement] = []
        self.wanted: list[Measurement] = []

    def add(self, path: Path, part: Part) -> None:
        """Add a part of a ledger."""
        kernel = path.parent.name
        for name in KINDS:
            known = self.kinds[name]
            # Of two kernels problems are two, and so is what they run.
            kinds = [(kernel, *kind) for kind in part.kinds[name]]
            if name == "origin":
                fresh = [row for kind, row in zip(kinds, part.examples, strict=True) if kind not in known]
                self.examples += fresh
            places = [known.setdefault(kind, len(known)) for kind in kinds]
            self.codes[name].append(np.array(places, np.int64)[part.codes[name]])
        count = len(part.codes["origin"])
        for name, value in (("kernel", kernel), ("file", path)):
            code = self.kinds[name].setdefault(value, len(self.kinds[name]))
            self.codes[name].append(np.full(count, code, np.int64))
        for name, values in part.numbers.items():
            self.numbers.setdefault(name, []).append(values)
        self.wanted += part.wanted

    def table(self) -> Tabulated:
        """What was gathered."""
        codes = {name: _joined(arrays) for name, arrays in self.codes.items()}
        numbers = {name: np.concatenate(arrays) for name, arrays in self.numbers.items()}
        chosen, count = self._chosen(codes, numbers) if len(codes["kernel"]) else (codes["kernel"], 0)
        codes = {name: values[chosen] for name, values in codes.items()}
        numbers = {name: values[chosen] for name, values in numbers.items()}
        return Tabulated(self._frame(codes, numbers), self.examples, self.wanted, count)

    def _chosen(self, codes: Mapping[str, Ints], numbers: Mapping[str, Any]) -> tuple[Ints, int]:
        """Which rows a table has, in its order; and how many there are in all, of each point by each of the
        settings."""
        machine = _ranked([row.origin.gpu for row in self.examples])[codes["origin"]]
        kernel = _ranked(list(self.kinds["kernel"]))[codes["kernel"]]
        points = _orders(self.kinds)
        of_problem, of_configuration = points["problem"][codes["problem"]], points["configuration"]
        provider, parameters = (some[codes["configuration"]] for some in of_configuration.T)
        settings = _ranked([str(kind) for kind in self.kinds["settings"]])[codes["settings"]]
        sorted_ = np.lexsort((settings, parameters, of_problem, provider, codes["file"], machine, kernel))
        # The sort is stable: of rows with the same slot the last line is the last.
        slot = [codes["file"], numbers["point"], settings]
        sorted_ = sorted_[_ends([values[sorted_] for values in slot])]
        count = len(sorted_)
        sorted_ = sorted_[numbers["usual"][sorted_]]
        group = _groups([values[sorted_] for values in (kernel, machine, numbers["point"])])
        by_time = np.lexsort((np.arange(len(sorted_)), numbers["measured_at"][sorted_], group))
        return sorted_[by_time[_ends([group[by_time]])]], count

    def _frame(self, codes: Mapping[str, Ints], numbers: Mapping[str, Any]) -> pd.DataFrame:
        of_kind: dict[str, dict[str, list[Any]]] = {
            "problem": _of_problems(list(self.kinds["problem"])),
            "configuration": _of_configurations(list(self.kinds["configuration"])),
            "fate": dict(
                zip(
                    ("status", "error", "incomparable", "bound", "valid", "invalid_reason", "throttle"),
                    list(zip(*self.kinds["fate"], strict=True))[1:] or [[]] * 7,
                    strict=True,
                )
            ),
            "origin": _of_origins(self.examples),
        }
        columns: dict[str, Any] = {"kernel": _objects(list(self.kinds["kernel"]))[codes["kernel"]]}
        for name, table in of_kind.items():
            columns |= {column: _objects(values)[codes[name]] for column, values in table.items()}
        columns["x"] = pd.Series(columns["x"].tolist())
        found = {
            name: values if name in ("x",) else pd.Series(values, dtype=object)
            for name, values in columns.items()
        }
        found |= {name: numbers.get(name, np.array([])) for name in FLOATS}
        for name in COUNTS:
            counts = numbers.get(name, np.array([], np.int64))
            found[name] = counts if (counts != NONE).all() else np.where(counts == NONE, np.nan, counts)
        found["origin"] = codes["origin"]
        found["rank"] = self._ranks(codes["problem"])
        found["key"] = pd.Series(numbers.get("key", np.array([], "S16")).astype(str), dtype=object)
        times, which = np.unique(numbers.get("measured_at", np.array([], np.int64)), return_inverse=True)
        texts = np.datetime_as_string(times.astype("datetime64[s]"), timezone="UTC")
        found["measured_at"] = pd.Series(texts.astype(object)[which], dtype=object)
        return pd.DataFrame(found)

    def _ranks(self, codes: Ints) -> Ints:
        """The place of each row's problem among all of the table."""
        kinds = list(self.kinds["problem"])
        used, which = np.unique(codes, return_inverse=True)
        return _ranked([place(_point(*kinds[code])) for code in used])[which]


def _point(kernel: str, workload: str, problem: Any) -> Point:
    return Point(kernel=kernel, provider="any", problem=problem)


def _of_problems(kinds: Sequence[Any]) -> dict[str, list[Any]]:
    points = [_point(*kind) for kind in kinds]
    named = list(zip(kinds, points, strict=True))
    return {
        "workload": [workload for _, workload, _ in kinds],
        "problem": [problem for _, _, problem in kinds],
        "extent": list(map(notation.extent, points)),
        "words": list(map(notation.words, points)),
        "x": [one.problem.get(x_name(kernel, workload, one)) for (kernel, workload, _), one in named],
        "headline": [headline(*kind) for kind in kinds],
    }


def _of_configurations(kinds: Sequence[Any]) -> dict[str, list[Any]]:
    points = [
        Point(kernel=kernel, provider=provider, problem={}, parameters=parameters)
        for kernel, provider, parameters in kinds
    ]
    return {
        "provider": [provider for _, provider, _ in kinds],
        "parameters": [parameters for _, _, parameters in kinds],
        "configuration": list(map(notation.configuration, points)),
        "label": list(map(notation.label, points)),
    }


def _of_origins(examples: Sequence[Measurement]) -> dict[str, list[Any]]:
    origins = [row.origin for row in examples]
    return {
        "gpu": [origin.gpu for origin in origins],
        "commit": [origin.commit for origin in origins],
        "dirty": [origin.dirty for origin in origins],
        "run": [origin.run for origin in origins],
        "command": [origin.command for origin in origins],
        "source": [row.parts.source for row in examples],
        "measurement": [row.parts.measurement for row in examples],
        "environment": [row.parts.environment for row in examples],
    }


def _orders(kinds: Mapping[str, Mapping[Any, int]]) -> dict[str, Any]:
    """The order of points (``point.order``) by their problems, and by provider and parameters."""
    problems = [order(_point(*kind))[2:4] for kind in kinds["problem"]]
    configured = [
        order(Point(kernel=kernel, provider=provider, problem={}, parameters=parameters))
        for kernel, provider, parameters in kinds["configuration"]
    ]
    by_provider, by_parameters = (_ranked([one[i] for one in configured]) for i in (1, 4))
    return {
        "problem": _ranked(problems),
        "configuration": np.stack([by_provider, by_parameters], axis=1),
    }


def _ranked(values: Sequence[Any]) -> Ints:
    """The place of each among all that are distinct, in their order."""
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return np.array([places[value] for value in values], np.int64)


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Values as an array of references to them."""
    found = np.empty(len(values), object)
    for place_, value in enumerate(values):  # a list among them is one value
        found[place_] = value
    return found


def _joined(arrays: Sequence[Any]) -> Ints:
    return np.concatenate(arrays) if arrays else np.array([], np.int64)


def _ends(columns: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Where in a sorted table the last row of each group of equals stands."""
    if not len(columns[0]):
        return np.array([], bool)
    differs = np.logical_or.reduce([values[1:] != values[:-1] for values in columns])
    return np.append(differs, True)


def _groups(columns: Sequence[Any]) -> Ints:
    """The number of the group of equals that each row of a sorted table is of."""
    ends = _ends(columns)
    return np.concatenate([[0], np.cumsum(ends[:-1])]) if len(ends) else np.array([], np.int64)
