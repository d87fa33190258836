"""Choose the provider and its configuration for a problem.

A problem that was tuned on this GPU gets its fastest configuration. A problem between tuned problems gets the
choice of the rule (module ``rule``) if the table trusts the rule there. Otherwise it gets the safest of the
rule's choice, a provider's default configuration, and torch. Without a table for the GPU torch is called. A
configuration is chosen only if it was verified on the GPU with the present source.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Gpu, Kernel, Provider
from ..declared import Value
from ..loading import Loaded
from . import rule, source, table
from .table import Configuration, Table, TableError, TunedKernel, TunedRegion

LIBRARY = Path(__file__).resolve().parents[1]

PLACES = (LIBRARY.parent / "results" / "tuned", LIBRARY / "tuned")
"""The folders with tables: in a checkout of the repository, and in an installed package."""

VARIABLE = "KERNELS_TUNED"
"""The environment variable that names another table, or a folder of them."""

RULE = Path(rule.__file__)


@dataclass(frozen=True)
class Choice:
    """A provider in a configuration, with a value for each of its parameters.

    ``how`` is ``exact`` for a tuned problem; ``generalised`` for the rule's choice where the rule is trusted;
    ``guessed`` for the rule's choice where it is not trusted but safer than the alternatives; ``default`` for
    a provider's default configuration; ``torch`` for the kernel's baseline. ``reason`` is a sentence that
    says why the choice is not exact, or empty.
    """

    provider: str
    parameters: Mapping[str, Value]
    how: str
    reason: str


def choose(loaded: Loaded, problem: object, gpu: Gpu | None, slug: str | None) -> Choice:
    """Return the choice for a problem of a kernel on a GPU.

    problem:
        An instance of the kernel's problem type.
    gpu, slug:
        The GPU and its slug (``nvidia-h200``); both None on a CPU, where torch is called.

    Warns once in a process of a table that can't be used, and of a provider that can't be called.
    """
    if slug is None:
        return _baseline(
            loaded.kernel, "only GPUs have tables of tuned configurations, and these tensors are on a CPU."
        )
    found = table_of(slug)
    if found is None:
        return _baseline(loaded.kernel, f"there is no usable table of tuned configurations for {slug}.")
    return choose_by(found, loaded, problem, gpu)


def choose_by(found: Table, loaded: Loaded, problem: object, gpu: Gpu | None) -> Choice:
    """Return the choice for a problem from the given table."""
    if loaded.name not in found.kernels:
        return _baseline(loaded.kernel, f"{loaded.name} was not tuned on {found.gpu}.")
    return _Chooser(found, loaded, problem, gpu).choose()


class _Chooser:
    """Makes one choice."""

    def __init__(self, found: Table, loaded: Loaded, problem: Any, gpu: Gpu | None) -> None:
        self.table = found
        self.tuned = found.kernels[loaded.name]
        self.loaded = loaded
        self.kernel = loaded.kernel
        self.problem = problem
        self.values = {one.name: getattr(problem, one.name) for one in dataclasses.fields(problem)}
        self.within_l2 = is_within(self.kernel, problem, found.l2_bytes)
        self.gpu = gpu

    def choose(self) -> Choice:
        for one in self.tuned.problems:
            if completed(self.kernel, one.problem) == self.values:
                if why := self.against(one.best):
                    return self.fallback(why)
                return self._choice(one.best, "exact", "")
        reason = f"{self.loaded.name} was not tuned at this problem."
        region = self.region
        if region is None or region.distance is None:
            return self.fallback(reason)
        picked = self.picked
        if picked is None or picked.distance > region.distance:
            return self.fallback(reason)
        return self._choice(picked.label, "generalised", reason)

    @functools.cached_property
    def picked(self) -> rule.Pick | None:
        """The rule's choice; None without neighbours, and if the table's regrets come from another version
        of the rule."""
        if self.table.rule != rule_digest():
            return None
        return rule.pick(
            tuned_of(self.kernel, self.tuned),
            self.values,
            self.within_l2,
            self.kernel.size,
            lambda label: self.against(label) is None,
        )

    @property
    def region(self) -> TunedRegion | None:
        """The region that the problem belongs to, or None."""
        return next((one for one in self.tuned.regions if one.within_l2 == self.within_l2), None)

    def fallback(self, reason: str) -> Choice:
        """Return the choice if the rule is not trusted: the safest of the default configurations that fit,
        the baseline, and the rule's choice, by the 90th percentile of their regret."""
        region = self.region
        known = {} if region is None else region.fallback.get(words_text(self.values), {})
        safest = next(
            (label for label in known if self._is_baseline(label) or self.against(label) is None), None
        )
        if safest is None:
            return _baseline(self.kernel, reason)
        if region is not None and region.is_safer(known[safest]) and self.picked is not None:
            return self._choice(self.picked.label, "guessed", reason)
        if self._is_baseline(safest):
            return _baseline(self.kernel, reason)
        return self._choice(safest, "default", reason)

    def _is_baseline(self, label: str) -> bool:
        return self.tuned.configurations[label].provider == self.kernel.baseline

    def against(self, label: str) -> str | None:
        """Return the reason why a configuration can't be called for this problem, as a sentence, or None.
        Warn if its provider can't be used at all."""
        chosen = self.tuned.configurations[label]
        if why := self._unusable(chosen.provider):
            _warn(why)
            return why
        return self._unfit(self.kernel.provider(chosen.provider), chosen)

    def _unusable(self, provider: str) -> str | None:
        """Return the reason why no configuration of a provider can be called for any problem."""
        name = f"{self.loaded.name}/{provider}"
        declared = {one.name: one for one in self.kernel.providers}.get(provider)
        if declared is None:
            return f"{name} was tuned on {self.table.gpu} and no longer exists; tune again."
        if not declared.is_installed:
            return (
                f"{name} was tuned on {self.table.gpu} and needs {declared.requires}, which is not installed."
            )
        if self.tuned.sources.get(provider) != _source(self.loaded, provider):
            return f"{name} was edited since it was tuned on {self.table.gpu}; sweep and tune again."
        return None

    def _unfit(self, provider: Provider, chosen: Configuration) -> str | None:
        name = f"{self.loaded.name}/{chosen.provider}"
        if ("cpu" if self.gpu is None else "cuda") not in provider.devices:
            return f"{name} does not run on this device."
        if self.gpu is not None and (why := provider.runs_on(self.gpu)):
            return f"{name} {why}."
        try:
            made = _made(provider, chosen.parameters)
        except ValueError as error:
            return f"{name} no longer takes its tuned parameters ({error}); sweep and tune again."
        why = provider.fits(self.problem, made, self.gpu)
        return None if why is None else f"{name} does not fit: {why}."

    def _choice(self, label: str, how: str, reason: str) -> Choice:
        chosen = self.tuned.configurations[label]
        return Choice(chosen.provider, dict(chosen.parameters), how, reason)


def is_within(kernel: Kernel, problem: Any, l2_bytes: int) -> bool:
    """Whether the bytes that a problem reads and writes fit the L2 cache."""
    return kernel.work(problem).bytes <= l2_bytes


def completed(kernel: Kernel, problem: Mapping[str, Value]) -> dict[str, Value]:
    """Return a problem with missing dimensions filled in from their defaults."""
    found = dict(problem)
    for name, variable in kernel.dimensions().items():
        if name not in found:
            value = found.get(variable.same_as) if variable.same_as else variable.default
            if value is not None:
                found[name] = value
    return found


def tuned_of(kernel: Kernel, one: TunedKernel) -> list[rule.Tuned]:
    """Return the problems of a table in the rule's form."""
    return [
        rule.Tuned(completed(kernel, each.problem), each.within_l2, each.near, frozenset(each.failed))
        for each in one.problems
    ]


def words_text(problem: Mapping[str, Value]) -> str:
    """Return the non-numeric dimensions of a problem as text: ``dtype=bfloat16``."""
    return " ".join(f"{name}={value}" for name, value in sorted(rule.words(problem).items()))


@functools.cache
def rule_digest() -> str:
    """Return the digest of the rule's code."""
    return source.of_file(RULE)


def table_of(slug: str) -> Table | None:
    """Return the table for a GPU, or None. Warn of a table that can't be used."""
    named = os.environ.get(VARIABLE)
    return _read(Path(named) if named else None, slug)


@functools.cache
def _read(named: Path | None, slug: str) -> Table | None:
    places = PLACES if named is None else (named,)
    # A file that the variable names is the table, whatever its name.
    files = [place if named and not place.is_dir() else place / f"{slug}.json" for place in places]
    file = next((one for one in files if one.is_file()), None)
    if file is None:
        if named is not None:
            lacks = f"holds no {files[0].name}" if named.is_dir() else "does not exist"
            _warn(f"{VARIABLE}={named} {lacks}; torch is called.")
        return None
    try:
        return table.read(file, slug)
    except TableError as error:
        _warn(f"the table {file} {error}; torch is called.")
        return None


def _baseline(kernel: Kernel, reason: str) -> Choice:
    provider = kernel.provider(kernel.baseline)
    declared = provider.variables()
    parameters = {name: one.default for name, one in declared.items() if one.default is not None}
    return Choice(provider.name, parameters, "torch", reason)


def _made(provider: Provider, parameters: Mapping[str, Value]) -> Any:
    """Return a provider's parameters with the table's values; None for a provider without parameters. Raises
    ValueError for invalid values."""
    declared = provider.variables()
    if declared.keys() != parameters.keys():
        raise ValueError(f"its parameters are {', '.join(declared) or 'none'}")
    if provider.parameters is None:
        return None
    return provider.parameters(**{name: declared[name].check(value) for name, value in parameters.items()})


def _source(loaded: Loaded, provider: str) -> str:
    """Return the digest of a provider's files; empty if they can't be read."""
    try:
        return source.digest(loaded, provider)
    except (OSError, SyntaxError):
        return ""


_said: set[str] = set()


def _warn(sentence: str) -> None:
    """Warn once per process and sentence."""
    if sentence not in _said:
        _said.add(sentence)
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
