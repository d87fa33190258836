"""Why rows are old: what of their keys was another when they were measured, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kernels.contract import Provider
from pipeline.execution.identity import Identity
from pipeline.points import problems
from pipeline.store import variables
from pipeline.store.environment import Environment
from pipeline.store.provenance import RunProvenance
from pipeline.store.record import Measurement, Parts
from pipeline.timing.settings import TimingSettings

MOST = 6
"""Past this, reasons are counted and not told."""

NOT_SET = "not set"


class OldRows:
    """How many rows are old, and why."""

    def __init__(self) -> None:
        self.count = 0
        self.reasons: Counter[str] = Counter()

    def add(self, reasons: Iterable[str]) -> None:
        """Count a row that is old for some reasons."""
        self.count += 1
        self.reasons.update(dict.fromkeys(reasons, 1))

    def said(self, of: str = "row") -> str:
        """That so many rows are old, and by what; empty where none is."""
        if not self.count:
            return ""
        parts = [
            reason if number == self.count else f"{reason} ({number:,} of them)"
            for reason, number in self.reasons.most_common(MOST)
        ]
        if (more := len(self.reasons) - MOST) > 0:
            parts.append(f"and {more} more reason{'s' * (more > 1)}")
        are = "is" if self.count == 1 else "are"
        return f"{self.count:,} {of}{'s' * (self.count > 1)} {are} old: {'; '.join(parts)}"


def reasons(
    row: Measurement, identity: Identity, runs: Mapping[str, RunProvenance], any_settings: bool = False
) -> list[str]:
    """Why a row is old beside what is here now, with ``any_settings`` whatever it was timed by; none for one
    that is fresh. ``runs`` are those that rows name."""
    if not problems.declares(identity.loaded.kernel, row.point):
        return [without_point(row)]
    now = identity.parts(row.point)
    if any_settings:
        now = now.model_copy(update={"settings": row.parts.settings})
    provider = identity.loaded.kernel.provider(row.point.provider)
    settings = with_seed(identity.settings, identity.seed)
    return of_parts(row, now, runs.get(row.origin.run), provider, identity.environment, settings)


def without_point(row: Measurement) -> str:
    """That a row's point is one no longer."""
    return f"{row.point.kernel}/{row.point.provider} no longer has such points"


def with_seed(settings: TimingSettings, seed: int) -> dict[str, Any]:
    """What the settings of a key are made of, by name."""
    return {**settings.model_dump(), "seed": seed}


def of_parts(
    row: Measurement,
    now: Parts,
    run: RunProvenance | None,
    provider: Provider,
    environment: Environment | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """What of the parts of a row's key, whose run is given if it is known, is another now: in this
    environment and by these settings."""
    found = []
    for part in row.parts.differences(now):
        if part == "source":
            found.append(f"the source of {row.point.kernel}/{row.point.provider} changed")
        elif part == "measurement":
            found.append(of_measurement(row.parts.measurement, now.measurement))
        elif part == "environment":
            then = None if run is None else run.environment
            found += of_environment(then, environment, provider)
        elif part == "settings":
            timed = None if run is None or run.timing is None else {**run.timing, "seed": run.seed}
            found += of_settings(timed, settings)
        else:
            found.append(f"the point of {row.point.kernel}/{row.point.provider} changed")
    return found


def of_measurement(then: str, now: str) -> str:
    """That the measuring code is of another version."""
    return f"measured by {_version(then)} of the measuring code, this is {_version(now)}"


def _version(text: str) -> str:
    return f"version {text}" if text.isdigit() else f"'{text}'"


def of_environment(then: Environment | None, now: Environment | None, provider: Provider) -> list[str]:
    """What of an environment is another in a provider's key."""
    if then is None or now is None:
        return ["the environment is another than theirs, which is not known"]
    before, after = (_flat(one.keyed_for(provider)) for one in (then, now))
    found = _differences(before, after)
    on_gpu = now.kind == "cuda"
    found += [
        f"{name} was {value}, and is in no key any more"
        for name, value in then.flags.items()
        if not variables.is_in_key(name, on_gpu)
    ]
    package = provider.package or ("numba" if provider.language == "numba" else "")
    return found or [
        f"another version of {package} was installed, which is not known"
        if package
        else "other parts of the environment were in the key"
    ]


def _flat(keyed: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in keyed.items() if name != "flags"}, **keyed["flags"]}


def of_settings(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """What of the timing's settings and the seed is another."""
    if then is None:
        return ["the timing's settings are others than theirs, which are not known"]
    return _differences(then, now) or ["other settings were in the key"]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys((*then, *now))
    return [
        f"{name} was {then.get(name, NOT_SET)}, is {now.get(name, NOT_SET)}"
        for name in names
        if then.get(name, NOT_SET) != now.get(name, NOT_SET)
    ]
