"""Build C++ and CUDA extensions by ninja, rebuild them when their inputs change, and load them.

A kernel's folder below ``build/`` holds the library, the compiler's log and a manifest for each source. The
manifest, not file times, decides whether the library is up to date: it records the digests of our sources and
headers, the flags, and the versions of the compilers and torch. A folder restored from a cache is therefore
as good as a new one, and loading from it writes nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import loading
from ..errors import UserError
from ..files import WORK, write_atomically
from ..machine import compilers, device
from ..machine.compilers import CXX_FLAGS, NVCC_FLAGS
from ..machine.fingerprint import Cxx, Nvcc, find_cxx, find_nvcc
from ..machine.torch_install import Torch, installed_torch
from ..records.base import Record, ValidationError
from .ninja_build import LibraryBuild, compile_all

BUILD = "PIPELINE_BUILD"
"""The variable with the folder for libraries, in processes that have another torch than this installation."""

WITHOUT_GPU = "90"
"""The compute capability to compile CUDA sources for on a host without a GPU: Hopper's."""


@dataclass(frozen=True)
class Place:
    """The folders of a kernel's sources and libraries.

    ``folder`` holds the sources, and ``output`` the libraries. Paths in messages and manifests are relative
    to ``root``. Files included from below ``folder`` or ``shared`` are ours; other files belong to the
    compilers and torch. ``needs`` are pairs of a source and the architecture with a letter, such as ``90a``,
    that a provider of the source needs.
    """

    name: str
    folder: Path
    root: Path
    output: Path
    shared: Path = loading.ROOT
    needs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def for_kernel(cls, loaded: loading.Loaded) -> Place:
        """Return the place of a kernel."""
        needs = tuple(
            (one.extension, one.needs.removeprefix("sm_"))
            for one in loaded.kernel.providers
            if one.extension and one.needs and one.needs[-1].isalpha()
        )
        build = Path(os.environ.get(BUILD) or WORK / "build")
        root, output = loading.ROOT.parent, build / "kernels" / loaded.name
        if loaded.is_outside:
            root, output = loaded.folder.parent, build / "outside" / loaded.package
        return cls(loaded.name, loaded.folder, root, output, needs=needs)

    def source(self, source: str) -> Path:
        """Return the path of a source relative to ``root``, as compilers and messages use it."""
        return (self.folder / source).relative_to(self.root)

    def architecture(self, source: str, capability: str) -> str:
        """Return the architecture that nvcc compiles a source for to run on a compute capability: ``90a``
        instead of ``90`` if a provider of the source needs it."""
        needed = {name[:-1]: name for of, name in self.needs if of == source}
        return needed.get(capability, capability)

    def target(self, source: str, suffix: str) -> Path:
        """Return the path of a build output of a source: ``.so``, ``.log`` or ``.json``."""
        return self.output / Path(source).with_suffix(suffix).name


def sources(loaded: loading.Loaded) -> tuple[str, ...]:
    """Return the sources of the extensions that a kernel declares."""
    return tuple(dict.fromkeys(one.extension for one in loaded.kernel.providers if one.extension))


def is_cuda(source: str) -> bool:
    """Whether nvcc compiles the source."""
    return source.endswith(".cu")


class Recipe(Record):
    """The inputs of a library besides its sources: flags, architectures, compilers, torch."""

    flags: tuple[str, ...]
    architectures: tuple[str, ...]
    compilers: tuple[str, ...]
    torch: str
    torch_cuda: str | None


class Made(Record):
    """The inputs of a library; ``inputs`` maps paths relative to the root to SHA-256 digests."""

    recipe: Recipe
    inputs: dict[str, str]


class Manifest(Made):
    """The inputs of a library, and the library's own SHA-256 digest."""

    library: str


@dataclass(frozen=True)
class Library:
    """An up-to-date library. ``built`` says that it was built just now.

    ``architectures`` are the architectures of its CUDA code; ``skipped`` are requested architectures that
    this nvcc does not support.
    """

    path: Path
    built: bool
    architectures: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """The plan to build one source."""

    job: LibraryBuild
    recipe: Recipe
    manifest: Path
    skipped: tuple[str, ...] = ()


def build(
    place: Place, sources: Sequence[str], architectures: Sequence[str] | None = None
) -> dict[str, Library]:
    """Build, in parallel, the libraries that are missing or out of date. Return the library of each source.

    With ``architectures`` None a library is built for the architectures of its last build; if it was never
    built and there is no GPU, for ``WITHOUT_GPU``. The architectures of this machine's GPUs are
    always added. Architectures that this nvcc does not support are skipped and reported in the result. Raises
    CompileError with the compiler's message. Raises UserError if a compiler or source is missing, or if no
    architecture is left.
    """
    plans = {source: _plan(source, architectures, place) for source in sources}
    if not plans:
        return {}
    with _lock(place):
        stale = [plan for plan in plans.values() if not _up_to_date(plan, place.root)]
        if stale:
            _make(stale, place)
    return {
        source: Library(
            path=plan.job.library,
            built=plan in stale,
            architectures=plan.recipe.architectures,
            skipped=plan.skipped,
        )
        for source, plan in plans.items()
    }


_loaded: set[Path] = set()


def load(place: Place, source: str) -> Path:
    """Load a source's operators as ``torch.ops.<kernel>.<function>``, building the library if necessary.
    Return the library's path.

    Raises as ``build`` does, and UserError for a CUDA source if torch sees no GPU. A source is loaded once
    per process; a later change of the source needs a new process.
    """
    path = place.target(source, ".so")
    if path in _loaded:
        return path
    import torch

    if is_cuda(source) and not torch.cuda.is_available():
        raise UserError(f"{place.name}/{source} needs a GPU, and torch {torch.__version__} sees none here.")
    build(place, [source])
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    _loaded.add(path)
    return path


def manifest(place: Place, source: str) -> Manifest | None:
    """Return a library's manifest, or None if there is none that this version can read."""
    return _read(place.target(source, ".json"))


def made_of(place: Place, source: str) -> Made:
    """Return the inputs of a library that was built."""
    found = manifest(place, source)
    assert found is not None, "it was built"
    return Made(recipe=found.recipe, inputs=found.inputs)


def would_be_made_of(place: Place, source: str, made: Made, architectures: Sequence[str] | None) -> bool:
    """Return whether a build of the source now would use the same inputs as ``made``.

    Raises the errors that ``build`` raises before it compiles.
    """
    plan = _plan(source, architectures, place)
    is_same = all(_sha256(place.root / path) == digest for path, digest in made.inputs.items())
    return plan.recipe == made.recipe and is_same


def with_architecture(architectures: Sequence[str], capability: str) -> tuple[str, ...]:
    """Return the architectures, with the capability added unless code for one of them runs on it.

    Code for 8.0 runs on 8.9, because the major version is the same. Code for 9.0 does not run on 10.0.
    """
    major, minor = capability[:-1], capability[-1]
    runs = any(a == capability or (a[:-1] == major and a[-1] <= minor) for a in architectures)
    return tuple(architectures) if runs else (*architectures, capability)


def _architectures(
    source: str, wanted: Sequence[str] | None, nvcc: Nvcc, place: Place
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the architectures to compile a CUDA source for, including this machine's GPUs, and the
    architectures that this nvcc does not support."""
    last = manifest(place, source)
    capabilities = _capabilities()
    known = last.recipe.architectures if last else () if capabilities else (WITHOUT_GPU,)
    all_ = tuple(dict.fromkeys(known if wanted is None else wanted))
    for capability in capabilities:
        all_ = with_architecture(all_, capability)
    possible = nvcc.architectures()
    chosen = tuple(name for name in all_ if name in possible)
    needed = [name for name in capabilities if with_architecture(chosen, name) != chosen]
    if needed or not chosen:
        raise UserError(
            f"nvcc {nvcc.version} can't compile for {_names(needed or all_)}; it knows "
            f"{_names(sorted(possible, key=_by_number))}. Name one of those, or install a newer nvcc."
        )
    return chosen, tuple(name for name in all_ if name not in possible)


def _names(architectures: Sequence[str]) -> str:
    return ", ".join(f"sm_{name}" for name in architectures)


def _capabilities() -> list[str]:
    """Return the compute capabilities of this machine's GPUs by the driver, without creating a CUDA
    context."""
    return ["{}{}".format(*device.driver_facts_of(gpu).capability) for gpu in device.gpus()]


def _plan(source: str, wanted: Sequence[str] | None, place: Place) -> _Plan:
    path = place.source(source)
    if not (place.root / path).is_file():
        raise UserError(f"kernel {place.name} has no {source}: {path} is not there.")
    cxx = find_cxx()
    library, torch = place.target(source, ".so"), installed_torch()
    skipped: tuple[str, ...] = ()
    if is_cuda(source):
        nvcc = find_nvcc()
        chosen, skipped = _architectures(source, wanted, nvcc, place)
        named = [place.architecture(source, name) for name in chosen]
        flags = (*NVCC_FLAGS, *compilers.targets(named))
        recipe = _recipe(flags, chosen, [nvcc, cxx], torch)
    else:
        nvcc = None
        recipe = _recipe(CXX_FLAGS, (), [cxx], torch)
    include, with_cuda = place.shared / "include", torch.cuda is not None
    compile_, link = compilers.commands(
        path, library, include, torch.folder, with_cuda, cxx, nvcc, recipe.flags
    )
    job = LibraryBuild(path, library, compile_, link)
    return _Plan(job, recipe, place.target(source, ".json"), skipped)


def _recipe(
    flags: tuple[str, ...], architectures: tuple[str, ...], compilers: Sequence[Nvcc | Cxx], torch: Torch
) -> Recipe:
    return Recipe(
        flags=flags,
        architectures=architectures,
        compilers=tuple(compiler.version for compiler in compilers),
        torch=torch.version,
        torch_cuda=torch.cuda,
    )


def _by_number(architecture: str) -> tuple[int, str]:
    digits = architecture.rstrip("af")
    return int(digits), architecture


@contextmanager
def _lock(place: Place) -> Iterator[None]:
    """Keep other processes from building the same kernel. The lock file is beside the folder, not in it."""
    place.output.parent.mkdir(parents=True, exist_ok=True)
    with place.output.with_name(f"{place.output.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Manifest | None:
    try:
        return Manifest.from_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _up_to_date(plan: _Plan, root: Path) -> bool:
    last = _read(plan.manifest)
    if last is None or last.recipe != plan.recipe:
        return False
    if _sha256(plan.job.library) != last.library or not plan.job.file(".log").is_file():
        return False
    return all(_sha256(root / path) == digest for path, digest in last.inputs.items())


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _make(plans: Sequence[_Plan], place: Place) -> None:
    """Compile the plans and write their manifests."""
    for plan in plans:
        plan.manifest.unlink(missing_ok=True)
    before = _contents(place)
    dependencies = compile_all([plan.job for plan in plans], place.output, place.root)
    for plan in plans:
        inputs: dict[str, str] = {}
        for path in sorted(set(_own_inputs(dependencies[plan.job], place))):
            digest = before.get(path)
            if digest is None or digest != _sha256(place.root / path):
                raise UserError(f"{path} changed while it was compiled. Run the command again.")
            inputs[path] = digest
        library = hashlib.sha256(plan.job.library.read_bytes()).hexdigest()
        made = Manifest(recipe=plan.recipe, inputs=inputs, library=library)
        write_atomically(plan.manifest, made.to_json(indent=1) + b"\n")


def _contents(place: Place) -> dict[str, str | None]:
    """Return the SHA-256 digests of all our sources and headers, by path relative to the root."""
    files = (path for folder in (place.folder, place.shared) for path in folder.rglob("*") if path.is_file())
    paths = (path for path in files if path.suffix not in (".py", ".pyc"))
    return {os.path.relpath(path, place.root): _sha256(path) for path in paths}


def _own_inputs(depfile: str, place: Place) -> Iterator[str]:
    """Yield our files that a compiler's dependency file names, relative to the root."""
    names = depfile.replace("\\\n", " ").split(": ", 1)[1]
    for name in re.findall(r"(?:\\.|\S)+", names):
        path = Path(os.path.normpath(place.root / re.sub(r"\\(.)", r"\1", name)))
        if path.is_relative_to(place.folder) or path.is_relative_to(place.shared):
            yield os.path.relpath(path, place.root)
