"""C++ and CUDA extensions: built once by ninja, rebuilt when what they are made of changes, loaded.

A kernel's folder below ``build/`` holds for each source the library, the compiler's log and a manifest. The
manifest, not file times, says whether the library is up to date: it names the content of every source and
header of ours that went in, the flags, the compilers and torch. A folder restored from a cache is therefore
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

WITHOUT_GPU = "90"
"""The compute capability that CUDA sources are compiled for where there is no GPU: Hopper's."""


@dataclass(frozen=True)
class Place:
    """Where a kernel's sources are and where its libraries go.

    ``folder`` holds the sources, ``output`` the libraries; paths in messages and manifests are relative to
    ``root``. What is included from below ``folder`` or ``shared`` is ours, all else the compilers' and
    torch's. ``needs`` are architectures with a letter, ``90a``, each with the source that has a provider
    which needs its own instructions.
    """

    name: str
    folder: Path
    root: Path
    output: Path
    shared: Path = loading.ROOT
    needs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def for_kernel(cls, loaded: loading.Loaded) -> Place:
        """The place of a kernel."""
        needs = tuple(
            (one.extension, one.needs.removeprefix("sm_"))
            for one in loaded.kernel.providers
            if one.extension and one.needs and one.needs[-1].isalpha()
        )
        root, output = loading.ROOT.parent, WORK / "build" / "kernels" / loaded.name
        if loaded.is_outside:
            root, output = loaded.folder.parent, WORK / "build" / "outside" / loaded.package
        return cls(loaded.name, loaded.folder, root, output, needs=needs)

    def source(self, source: str) -> Path:
        """Path of a source, relative to ``root``, as compilers are told it and messages show it."""
        return (self.folder / source).relative_to(self.root)

    def architecture(self, source: str, capability: str) -> str:
        """What nvcc compiles a source for where code for a compute capability is wanted: ``90a`` instead of
        ``90`` if a provider of the source needs it."""
        needed = {name[:-1]: name for of, name in self.needs if of == source}
        return needed.get(capability, capability)

    def target(self, source: str, suffix: str) -> Path:
        """Path of what the build makes of a source: ``.so``, ``.log``, ``.json``."""
        return self.output / Path(source).with_suffix(suffix).name


def sources(loaded: loading.Loaded) -> tuple[str, ...]:
    """The sources of a kernel's extensions, by its declaration."""
    return tuple(dict.fromkeys(one.extension for one in loaded.kernel.providers if one.extension))


def is_cuda(source: str) -> bool:
    """Whether nvcc compiles the source."""
    return source.endswith(".cu")


class Recipe(Record):
    """What a library depends on beside its own sources."""

    flags: tuple[str, ...]
    architectures: tuple[str, ...]
    compilers: tuple[str, ...]
    torch: str
    torch_cuda: str | None


class Made(Record):
    """What a library is made of: ``inputs`` are SHA-256 by path under the root."""

    recipe: Recipe
    inputs: dict[str, str]


class Manifest(Made):
    """What a library was made of, and the SHA-256 of itself."""

    library: str


@dataclass(frozen=True)
class Library:
    """A library that is up to date, and whether it had to be built.

    ``architectures`` are those it holds CUDA code for, ``skipped`` those that were wanted too.
    """

    path: Path
    built: bool
    architectures: tuple[str, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class _Plan:
    """How to build one source."""

    job: LibraryBuild
    recipe: Recipe
    manifest: Path
    skipped: tuple[str, ...] = ()


def build(
    place: Place, sources: Sequence[str], architectures: Sequence[str] | None = None
) -> dict[str, Library]:
    """Build the libraries of sources that are missing or out of date, in parallel; one by source.

    ``architectures`` None means those that the library was built for last, at first this machine's own, or
    ``WITHOUT_GPU``. This machine's own GPUs are always added. Architectures that this nvcc does not know are
    left out and named in the answer. Raises CompileError with the compiler's message, and UserError for a
    missing compiler or source or when no architecture is left.
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
    """Make ``torch.ops.<kernel>.<function>`` of a source available, building it first if need be; the
    library.

    Raises what ``build`` raises, and UserError for a CUDA source where torch sees no GPU. A source is
    loaded once in a process; a later change of it needs a new process.
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
    """What a library was made of, or None where there is no manifest that this version can read."""
    return _read(place.target(source, ".json"))


def made_of(place: Place, source: str) -> Made:
    """What a library that was built is made of."""
    found = manifest(place, source)
    assert found is not None, "it was built"
    return Made(recipe=found.recipe, inputs=found.inputs)


def would_be_made_of(place: Place, source: str, made: Made, architectures: Sequence[str] | None) -> bool:
    """Whether the library of a source, built now, would be made of the same; raises what ``build`` raises
    before it compiles anything."""
    plan = _plan(source, architectures, place)
    is_same = all(_sha256(place.root / path) == digest for path, digest in made.inputs.items())
    return plan.recipe == made.recipe and is_same


def with_architecture(architectures: Sequence[str], capability: str) -> tuple[str, ...]:
    """The architectures, and the capability too unless code for one of them runs on it.

    Code for 8.0 runs on 8.9, since the major version is the same; code for 9.0 does not run on 10.0.
    """
    major, minor = capability[:-1], capability[-1]
    runs = any(a == capability or (a[:-1] == major and a[-1] <= minor) for a in architectures)
    return tuple(architectures) if runs else (*architectures, capability)


def _architectures(
    source: str, wanted: Sequence[str] | None, nvcc: Nvcc, place: Place
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to compile a CUDA source for: what is wanted and this machine's GPUs. Then, what of it this nvcc
    does not know."""
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
    """Compute capabilities of this machine's GPUs, asked of the driver so that no CUDA context is made."""
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
    flags: tuple[str, ...],
    architectures: tuple[str, ...],
    compilers: Sequence[Nvcc | Cxx],
    torch: Torch,
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
    """Hold off other processes that build the same kernel. The lock lies beside the folder, not in it."""
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
    """Compile, and write the manifests."""
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
    """SHA-256 of every source and header of ours, by path relative to the root."""
    files = (path for folder in (place.folder, place.shared) for path in folder.rglob("*") if path.is_file())
    paths = (path for path in files if path.suffix not in (".py", ".pyc"))
    return {os.path.relpath(path, place.root): _sha256(path) for path in paths}


def _own_inputs(depfile: str, place: Place) -> Iterator[str]:
    """The files of ours that a compiler's dependency file names, relative to the root."""
    names = depfile.replace("\\\n", " ").split(": ", 1)[1]
    for name in re.findall(r"(?:\\.|\S)+", names):
        path = Path(os.path.normpath(place.root / re.sub(r"\\(.)", r"\1", name)))
        if path.is_relative_to(place.folder) or path.is_relative_to(place.shared):
            yield os.path.relpath(path, place.root)
