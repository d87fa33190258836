"""C++ and CUDA extensions: built once by ninja, rebuilt when what they are made of changes, loaded.

``build/<kernel>/`` holds for each source the object, the compiler's log, the library and a manifest. The
manifest, not file times, says whether the library is up to date: it names the content of every source
and header of ours that went in, the flags, the compilers and torch. A folder restored from a cache is
therefore as good as a new one, and loading from it writes nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ninja
import pynvml
import torch
from ninja.ninja_syntax import Writer
from ninja.ninja_syntax import escape as ninja_escape
from pydantic import ValidationError

from pipeline.errors import UserError
from pipeline.measure import device
from pipeline.measure.record import Record
from pipeline.measure.toolchain import Cxx, Nvcc, find_cxx, find_nvcc

ROOT = Path(__file__).resolve().parents[2]
CUDA_SOURCE = "cuda.cu"
CPP_SOURCE = "cpp.cpp"
SOURCES = (CUDA_SOURCE, CPP_SOURCE)
ARCHITECTURES = ("80", "90", "100")
"""Compute capabilities that a library holds code for: A100, H100 and H200, B200."""

# LibTorch's stable ABI of torch 2.10, which every later torch keeps.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
CXX_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", STABLE_ABI)
# USE_CUDA declares the stream; -lineinfo lets profilers and disassembly point at the source.
NVCC_FLAGS = (
    "-std=c++17",
    "-O3",
    "-lineinfo",
    "-Xptxas=-v",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-DUSE_CUDA",
    STABLE_ABI,
)


class CompileError(UserError):
    """A source that does not compile or link; its text is the compiler's own."""


@dataclass(frozen=True)
class Place:
    """Where sources are and where their libraries go: ``root/kernels`` and ``output``."""

    root: Path = ROOT
    output: Path = ROOT / "build"

    def source(self, kernel: str, source: str) -> Path:
        """Path of a source, relative to ``root``, as compilers are told it and messages show it."""
        return Path("kernels", kernel, source)

    def target(self, kernel: str, source: str, suffix: str) -> Path:
        """Path of what the build makes of a source: ``.o``, ``.so``, ``.json``."""
        return self.output / kernel / Path(source).with_suffix(suffix)


HERE = Place()


class Recipe(Record):
    """What a library depends on beside its own sources."""

    flags: tuple[str, ...]
    architectures: tuple[str, ...]
    compilers: tuple[str, ...]
    torch: str
    torch_cuda: str | None


class Manifest(Record):
    """What a library was made of: ``inputs`` and ``library`` are SHA-256, inputs by path under the root."""

    recipe: Recipe
    inputs: dict[str, str]
    library: str


@dataclass(frozen=True)
class Library:
    """A library that is up to date, whether it had to be built, and the architectures left out."""

    path: Path
    built: bool
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class _Job:
    """One source to build, its recipe and the two commands."""

    kernel: str
    source: str
    recipe: Recipe
    skipped: tuple[str, ...]
    compile: tuple[str, ...]
    link: tuple[str, ...]


def build(
    kernel: str,
    sources: Sequence[str] = SOURCES,
    architectures: Sequence[str] | None = None,
    place: Place = HERE,
) -> dict[str, Library]:
    """Build the libraries of a kernel that are missing or out of date, in parallel; one by source.

    ``architectures`` None means those that the library was built for last, at first ``ARCHITECTURES``.
    This machine's own GPUs are always added. Architectures that this nvcc does not know are left out and
    named in the answer. Raises CompileError with the compiler's message, and UserError for a missing
    compiler or source or when no architecture is left.
    """
    jobs = [_job(kernel, source, architectures, place) for source in sources]
    with _lock(kernel, place):
        stale = [job for job in jobs if not _up_to_date(job, place)]
        if stale:
            _run_ninja(kernel, stale, place)
    return {
        job.source: Library(place.target(kernel, job.source, ".so"), job in stale, job.skipped)
        for job in jobs
    }


_loaded: set[Path] = set()


def load(kernel: str, source: str, place: Place = HERE) -> None:
    """Make ``torch.ops.<kernel>.<provider>`` of a source available, building it first if need be.

    Raises what ``build`` raises, and UserError for a CUDA source where torch sees no GPU. A source is
    loaded once in a process; a later change of it needs a new process.
    """
    path = place.target(kernel, source, ".so")
    if path in _loaded:
        return
    if source == CUDA_SOURCE and not torch.cuda.is_available():
        raise UserError(f"{kernel}/{source} needs a GPU, and torch {torch.__version__} sees none here.")
    build(kernel, [source], place=place)
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    _loaded.add(path)


def with_architecture(architectures: Sequence[str], capability: str) -> tuple[str, ...]:
    """The architectures, and the capability too unless code for one of them runs on it.

    Code for 8.0 runs on 8.9, since the major version is the same; code for 9.0 does not run on 10.0.
    """
    major, minor = capability[:-1], capability[-1]
    runs = any(a == capability or (a[:-1] == major and a[-1] <= minor) for a in architectures)
    return tuple(architectures) if runs else (*architectures, capability)


def _architectures(kernel: str, wanted: Sequence[str] | None, place: Place) -> tuple[str, ...]:
    """What to compile a CUDA source for: what is wanted, and this machine's GPUs."""
    manifest = _read_manifest(place.target(kernel, CUDA_SOURCE, ".json"))
    known = manifest.recipe.architectures if manifest else ARCHITECTURES
    chosen = tuple(known if wanted is None else wanted)
    for capability in _capabilities():
        chosen = with_architecture(chosen, capability)
    return chosen


def _capabilities() -> list[str]:
    """Compute capabilities of this machine's GPUs, asked of the driver so that no CUDA context is made."""
    gpus = device.gpus()
    if not gpus:
        return []
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus]
        return ["{}{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _job(kernel: str, source: str, wanted: Sequence[str] | None, place: Place) -> _Job:
    path = place.source(kernel, source)
    if not (place.root / path).is_file():
        raise UserError(f"kernel {kernel} has no {source}: {path} is not there.")
    cxx = find_cxx()
    target = {suffix: str(place.target(kernel, source, suffix)) for suffix in (".d", ".o", ".so")}
    torch_root = Path(torch.__file__).parent
    tail = ["-isystem", str(torch_root / "include"), "-MMD", "-MF", target[".d"], "-c", str(path)]
    tail += ["-o", target[".o"]]
    link = [str(cxx.path), "-shared", target[".o"], "-o", target[".so"]]
    link += [f"-L{torch_root / 'lib'}", "-ltorch_cpu"]
    if source != CUDA_SOURCE:
        recipe = _recipe(CXX_FLAGS, (), [cxx])
        return _Job(kernel, source, recipe, (), (str(cxx.path), *CXX_FLAGS, *tail), tuple(link))

    nvcc = find_nvcc()
    architectures = _architectures(kernel, wanted, place)
    known = nvcc.architectures()
    chosen = tuple(a for a in architectures if a in known)
    if not chosen:
        raise UserError(
            f"nvcc {nvcc.version} can't compile for any of sm_{', sm_'.join(architectures)}; "
            f"it knows sm_{', sm_'.join(sorted(known, key=_by_number))}."
        )
    flags = (*NVCC_FLAGS, *(f"-gencode=arch=compute_{a},code=sm_{a}" for a in chosen))
    recipe = _recipe(flags, chosen, [nvcc, cxx])
    if torch.version.cuda is not None:
        link += ["-ltorch_cuda"]
    return _Job(
        kernel,
        source,
        recipe,
        tuple(a for a in architectures if a not in known),
        (str(nvcc.path), "-ccbin", str(cxx.path), *flags, *tail),
        # The static runtime: loading then needs no search path to libcudart.
        (*link, f"-L{nvcc.libraries}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"),
    )


def _recipe(
    flags: tuple[str, ...], architectures: tuple[str, ...], compilers: Sequence[Nvcc | Cxx]
) -> Recipe:
    return Recipe(
        flags=flags,
        architectures=architectures,
        compilers=tuple(compiler.version for compiler in compilers),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
    )


def _by_number(architecture: str) -> tuple[int, str]:
    digits = architecture.rstrip("af")
    return int(digits), architecture


@contextmanager
def _lock(kernel: str, place: Place) -> Iterator[None]:
    """Hold off other processes that build the same kernel. The lock lies beside the folder, not in it."""
    place.output.mkdir(parents=True, exist_ok=True)
    with (place.output / f"{kernel}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _up_to_date(job: _Job, place: Place) -> bool:
    manifest = _read_manifest(place.target(job.kernel, job.source, ".json"))
    if manifest is None or manifest.recipe != job.recipe:
        return False
    library = place.target(job.kernel, job.source, ".so")
    if _sha256(library) != manifest.library or not place.target(job.kernel, job.source, ".log").is_file():
        return False
    return all(_sha256(place.root / path) == digest for path, digest in manifest.inputs.items())


def _read_manifest(path: Path) -> Manifest | None:
    """The manifest, or None where there is none that this version can read."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _run_ninja(kernel: str, jobs: Sequence[_Job], place: Place) -> None:
    """Build the jobs from scratch and write their manifests."""
    folder = place.output / kernel
    folder.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        # ninja goes by file times, which a restored folder does not keep: leave it nothing to compare.
        for suffix in (".json", ".so", ".o"):
            place.target(kernel, job.source, suffix).unlink(missing_ok=True)
    for old in folder.glob("*.failed"):
        old.unlink()
    ninja_file = folder / "build.ninja"
    with ninja_file.open("w") as text:
        _write_ninja(Writer(text), jobs, place)  # type: ignore[arg-type]  # its stub takes a str
    before = _contents(place.root)
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-f", str(ninja_file)]
    result = subprocess.run(command, cwd=place.root, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompileError(_failure(jobs, place) or result.stdout + result.stderr)
    for job in jobs:
        _write_manifest(job, before, place)


def _write_ninja(writer: Writer, jobs: Sequence[_Job], place: Place) -> None:
    writer.variable("builddir", ninja_escape(str(place.output / jobs[0].kernel)))
    # A failed command leaves its log as .failed, so that the message can be told from the rest.
    writer.rule("run", "$call > $log 2>&1 || { mv $log $failed; exit 1; }")
    for job in jobs:
        target = {
            suffix: str(place.target(job.kernel, job.source, suffix))
            for suffix in (".o", ".so", ".d", ".log", ".link.log", ".failed", ".link.failed")
        }
        compile_: dict[str, str] = {
            "call": ninja_escape(shlex.join(job.compile)),
            "log": ninja_escape(shlex.quote(target[".log"])),
            "failed": ninja_escape(shlex.quote(target[".failed"])),
            "depfile": ninja_escape(target[".d"]),
        }
        link: dict[str, str] = {
            "call": ninja_escape(shlex.join(job.link)),
            "log": ninja_escape(shlex.quote(target[".link.log"])),
            "failed": ninja_escape(shlex.quote(target[".link.failed"])),
        }
        source = str(place.source(job.kernel, job.source))
        writer.build([target[".o"]], "run", [source], variables=compile_)
        writer.build([target[".so"]], "run", [target[".o"]], variables=link)


def _failure(jobs: Sequence[_Job], place: Place) -> str:
    """What the compilers said about the sources that failed."""
    messages = []
    for job in jobs:
        for suffix, verb in ((".failed", "compile"), (".link.failed", "link")):
            log = place.target(job.kernel, job.source, suffix)
            if log.is_file():
                lines = [line for line in log.read_text().splitlines() if not line.startswith("ptxas info")]
                messages.append(
                    f"{place.source(job.kernel, job.source)} does not {verb}:\n" + "\n".join(lines)
                )
    return "\n".join(messages)


def _contents(root: Path) -> dict[str, str | None]:
    """SHA-256 of every source and header under ``root/kernels``, by path relative to the root."""
    files = (path for path in (root / "kernels").rglob("*") if path.is_file())
    paths = (path for path in files if path.suffix not in (".py", ".pyc"))
    return {str(path.relative_to(root)): _sha256(path) for path in paths}


def _write_manifest(job: _Job, before: dict[str, str | None], place: Place) -> None:
    """``before`` are the contents when the compilers started, so that an edit meanwhile is noticed."""
    depfile = place.target(job.kernel, job.source, ".d").read_text()
    inputs: dict[str, str] = {}
    for path in sorted(set(_own_inputs(depfile, place.root))):
        digest = before.get(path)
        if digest is None or digest != _sha256(place.root / path):
            raise UserError(f"{path} changed while it was compiled. Run the command again.")
        inputs[path] = digest
    library = place.target(job.kernel, job.source, ".so").read_bytes()
    manifest = Manifest(recipe=job.recipe, inputs=inputs, library=hashlib.sha256(library).hexdigest())
    path_to = place.target(job.kernel, job.source, ".json")
    temporary = path_to.with_suffix(".json.new")
    temporary.write_text(manifest.model_dump_json(indent=1) + "\n")
    temporary.replace(path_to)


def _own_inputs(depfile: str, root: Path) -> Iterator[str]:
    """The files in ``root/kernels`` that a compiler's dependency file names, relative to the root."""
    names = depfile.replace("\\\n", " ").split(": ", 1)[1]
    for name in re.findall(r"(?:\\.|\S)+", names):
        path = Path(os.path.normpath(root / re.sub(r"\\(.)", r"\1", name)))
        if path.is_relative_to(root / "kernels"):
            yield str(path.relative_to(root))
