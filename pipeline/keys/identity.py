"""Compute keys: digests of all that a measurement of a point depends on, here and now."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernel_pipeline.errors import UserError
from kernel_pipeline.judging import imported
from kernel_pipeline.machine.compilers import CXX_FLAGS, NVCC_FLAGS
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Parts
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension

from .. import ROOT
from ..store import commit, plain_yaml
from ..store.provenance import OutsideKernel, RunProvenance, hashed, keyed
from . import closure, cpp_digest, opened, versions

OUTSIDE = "_kernel"
"""The name for the modules of a kernel outside of the repository. Its own package is named after the folder's
path, which must not be in a key."""


ADDED = ("destination", "workspaces", "bounded")
"""Fields of a kernel's declaration that decide how entries are called."""

READINGS = ("draws", "peak_memory", "host_time")
"""Fields of a kernel's declaration that add readings to its rows."""


@dataclass(frozen=True)
class ProviderSource:
    """The digest of the code that a provider runs, and its Python files with all files that they may open."""

    digest: str
    files: frozenset[Path]


class Identity:
    """Keys of one kernel's points on one device, by its environment, the timing's settings and the seed.

    ``relevant_environment`` has, by provider, the digest of the parts of the environment that are in a key.
    It is given for a device on another host, because it depends on the packages that are installed there.
    """

    def __init__(
        self,
        loaded: loading.Loaded,
        environment: Environment,
        settings: TimingSettings,
        seed: int,
        relevant_environment: Mapping[str, str] | None = None,
    ) -> None:
        self.loaded = loaded
        self.environment = environment
        self.settings = settings
        self.seed = seed
        self._sources: dict[str, str] = {}
        self._environments: dict[str, str] = dict(relevant_environment or {})

    def key(self, point: Point) -> str:
        """Return the key that a measurement of the point would have now."""
        return self.parts(point).key

    def parts(self, point: Point) -> Parts:
        """Return the parts of the key that a measurement of the point would have now. Raises UserError if a
        provider's source can't be read.
        """
        return Parts(
            point=digest(point.to_dict()),
            source=self.source(point.provider),
            measurement=self.measurement,
            environment=self.relevant_environment(point.provider),
            settings=self.settings_digest,
        )

    @cached_property
    def settings_digest(self) -> str:
        """The digest of the timing's settings and the seed."""
        return settings_digest(self.settings, self.seed)

    @cached_property
    def measurement(self) -> str:
        """The version of the code that times and verifies with these settings on this device."""
        return versions.measurement(self.environment.kind, self.settings.timer)

    def source(self, provider: str) -> str:
        """Return the digest of the provider's source; empty for a provider that the kernel no longer has."""
        if provider not in self._sources:
            try:
                declared = self.loaded.kernel.provider(provider)
            except KeyError:
                return ""
            self._sources[provider] = source(self.loaded, declared).digest
        return self._sources[provider]

    def relevant_environment(self, provider: str) -> str:
        """Return the digest of the environment's parts on which the provider's times depend."""
        if provider not in self._environments:
            relevant_environment = self.environment.keyed_for(self.loaded.kernel.provider(provider))
            self._environments[provider] = digest(relevant_environment)
        return self._environments[provider]


def settings_digest(timing: TimingSettings, seed: int) -> str:
    """Return the digest of settings and seed that rows have as ``parts.settings``."""
    return digest([timing.to_dict(), seed])


def settings_beside(ledger: Path) -> tuple[TimingSettings, int] | None:
    """Read the timing's settings and the seed of the sweep that last wrote a ledger, from the file beside it.

    Returns None if that file is missing or has no settings.
    """
    try:
        config = plain_yaml.load(ledger.with_suffix(".yaml").read_text())
        return TimingSettings.from_dict(config["timing"]), int(config["seed"])
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return None


def source(loaded: loading.Loaded, provider: Provider) -> ProviderSource:
    """Return the source that a provider runs.

    The source consists of the provider's entry, the inputs, the reference, the tolerance and the problem's
    methods, with every definition that these reach in the kernel's folder, ``kernels/`` and
    ``kernel_pipeline/``. For C++ and CUDA it has the files, the repository's headers that they include, and
    the compiler's flags.

    Raises UserError that names the file if a source can't be read.
    """
    kernel, folder = loaded.kernel, loaded.folder
    reference = folder / kernel.reference
    form = folder / (provider.reference or kernel.reference)
    entries = [(reference, "outputs"), *((form, name) for name in ("inputs", "reference"))]
    entries += [(reference, name) for name in (kernel.comparison, kernel.workspaces) if name is not None]
    entries += [_definition(kernel.tolerance), (_file(kernel.problem), f"{kernel.problem.__qualname__}.*")]
    if provider.interpreted:
        entries.append(_definition(kernel.interpreted))
    if provider.file.endswith(".py"):
        entries.append((folder / provider.file, provider.function))
    if provider.prepare is not None:
        file, _, function = provider.prepare.partition(":")
        entries.append((folder / file, function))
    if provider.compiled:
        entries.append((loading.LIBRARY / "compiled.py", "compiled"))
    if kernel.destination or kernel.workspaces:
        entries.append((loading.LIBRARY / "structures.py", "adapted"))
    roots = {"kernels": loading.ROOT, "kernel_pipeline": loading.LIBRARY}
    if loaded.is_outside:
        roots[OUTSIDE] = folder
    try:
        python, files = _python(entries, roots, folder, {*kernel.arguments, *_fields(provider)})
        of_text: dict[str, Any] = {
            **python,
            "called": provider.function if not provider.file.endswith(".py") else None,
            "arguments": kernel.arguments,
            "in_place": kernel.in_place,
            "compiled": provider.compiled,
            # Only if a kernel declares them, so that the keys of other kernels do not change.
            **{name: value for name in ADDED if (value := getattr(kernel, name))},
        }
        if provider.prepare is not None:
            of_text["weights"] = kernel.weights
        # Rows from before the declaration lack these readings, and other kernels' keys stay as they are.
        of_text |= {name: value for name in READINGS if (value := getattr(kernel, name))}
        if provider.extension is not None:
            shared = [loading.ROOT, loading.ROOT / "include"]
            of_text["text"] = cpp_digest.closure(folder / provider.extension, [folder, *shared])
            is_cuda = extension.is_cuda(provider.extension)
            of_text["flags"] = NVCC_FLAGS if is_cuda else CXX_FLAGS
    except (LookupError, OSError) as error:
        raise UserError(f"{loaded.name}/{provider.name}: {error}") from error
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    return ProviderSource(digest(of_text), files)


def _python(
    entries: Sequence[tuple[Path, str]], roots: Mapping[str, Path], folder: Path, given: set[str]
) -> tuple[dict[str, Any], frozenset[Path]]:
    """Return the digests of the code that Python definitions reach and of the files that it may open, and
    these files.

    Modules outside of the folder are included unless they are installed packages.
    """
    followed = {**roots}
    while True:
        found = closure.closure(entries, followed, given=given)
        outside = opened.elsewhere(found.elsewhere - followed.keys(), folder)
        if not outside:
            break
        followed |= outside
    beside = {folder: opened.files(folder, found.files)}
    for name in followed.keys() - roots.keys():
        place = followed[name] if followed[name].is_dir() else followed[name].parent
        beside[place] = opened.files(place, found.files)
    files = {*found.files, *(place / name for place, names in beside.items() for name in names)}
    opened_too = [beside[place] for place in sorted(beside) if beside[place]]
    return {"python": found.digest, "opened": opened_too}, frozenset(path.resolve() for path in files)


def _fields(provider: Provider) -> set[str]:
    """Return the names of a provider's parameters."""
    return {one.name for one in dataclasses.fields(provider.parameters)} if provider.parameters else set()


def _definition(function: Callable[..., Any]) -> tuple[Path, str]:
    """Return the file and the name of a function. Raises UserError for one without a name of its own."""
    name = getattr(function, "__qualname__", f"<{type(function).__name__}>")
    if "<" in name:
        raise UserError(
            f"write {name} as a named function: a kernel's tolerance and interpreted must have names of "
            "their own."
        )
    return _file(function), name


def _file(definition: Any) -> Path:
    return Path(inspect.getfile(definition) if not isinstance(definition, type) else _of_class(definition))


def _of_class(definition: type) -> str:
    found = sys.modules[definition.__module__].__file__
    assert found is not None, "a kernel's module is a file"
    return found


def unknown_commits(identities: Sequence[Identity]) -> list[str]:
    """Return a sentence for each commit that new rows of these kernels can't name, with the reason.

    A kernel outside of any git repository has no commit, and gets no sentence.
    """
    found = []
    if identities and (why := commit.unreadable(ROOT)):
        found.append(f"Rows don't name the commit that they were measured at: {why}.")
    for loaded in (one.loaded for one in identities if one.loaded.is_outside):
        if loaded.folder.is_relative_to(ROOT):
            continue  # a project's own kernel
        why = commit.unreadable(loaded.folder)
        if why is not None and "is in no git repository" not in why:
            found.append(f"Rows of {loaded.name} don't name the commit of its source: {why}.")
    return found


def run_here(
    run: str,
    command: str,
    environment: Environment,
    devices: Sequence[Device],
    identities: Sequence[Identity],
) -> RunProvenance:
    """Describe a run of the current commit on devices of one model.

    ``identities`` belong to the run's kernels; they share the settings, the seed and the measuring code.
    """
    head, is_dirty = commit.head(ROOT)
    outside = {}
    for loaded in (one.loaded for one in identities if one.loaded.is_outside):
        own, is_edited = commit.head(loaded.folder, ["."])
        outside[loaded.name] = OutsideKernel(commit=own, dirty=is_edited or is_dirty)
    first = identities[0]
    return RunProvenance(
        run=run,
        gpu=environment.gpu,
        devices={str(one): hashed(one.uuid) for one in devices},
        command=command,
        commit=head,
        dirty=is_dirty,
        outside=outside,
        image=environment.image,
        base_image=environment.base_image,
        environment=keyed(environment),
        settings=first.settings_digest,
        timing=first.settings.to_dict(),
        seed=first.seed,
        measurement=first.measurement,
    )


@cache
def _keyed(where: str, provider: str) -> frozenset[Path]:
    """Return the files that a provider's key covers, outside of the folder of a submission to ``judge``."""
    loaded = loading.load(where)
    if (loaded.folder / imported.FILE).is_file():
        return frozenset()
    return source(loaded, loaded.kernel.provider(provider)).files


def unkeyed(paths: tuple[str, ...], where: str, provider: str) -> str | None:
    """Return the paths that a provider's key does not cover, as a row names them; None if it covers all."""
    if not paths:
        return None
    keyed, home = _keyed(where, provider), str(Path.home())
    left = [path.replace(home, "~", 1) for path in paths if Path(path) not in keyed]
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return f"{', '.join(left[:3])}{more}" if left else None
