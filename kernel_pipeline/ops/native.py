"""Build the C++ and CUDA sources of providers once for this machine, keep the libraries, and load them.

In a checkout the libraries of ``make build`` are used while they are up to date. Otherwise a source is
compiled at the first call that needs it, or ahead by ``python -m kernel_pipeline.ops.build``. The library is
kept in ``$KERNELS_CACHE``, by default ``~/.cache/kernel_pipeline``. Only this user may own and write that
folder, since its libraries are loaded. A library's folder is named by a digest of its sources, headers,
flags, and the versions of the compilers and torch.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .. import loading
from ..loading import Loaded
from ..machine import compilers
from ..machine.compilers import NoCompilerError

VARIABLE = "KERNELS_CACHE"

BUILT = loading.LIBRARY.parent / "build" / "kernels"
"""The folder of the libraries that the pipeline of a checkout builds."""

_log = logging.getLogger(__name__)


class NotThereError(Exception):
    """A provider that can't be called on this machine; the text is a sentence with the reason."""


def load(loaded: Loaded, source: str) -> None:
    """Make a source's operators available in ``torch.ops``, building the library if necessary. Raises
    NotThereError, with a sentence, if there is no compiler, if the source does not compile, or if a CUDA
    source finds no GPU.
    """
    if not is_there(loaded, source):
        path = library(loaded, source)
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise NotThereError(f"{path} does not load: {error}.") from error


def is_there(loaded: Loaded, source: str) -> bool:
    """Whether a source's operators are loaded in this process."""
    defined = re.findall(r'm\.def\(\s*"(\w+)\(', (loaded.folder / source).read_text())
    return bool(defined) and all(hasattr(getattr(torch.ops, loaded.name), name) for name in defined)


def library(loaded: Loaded, source: str) -> Path:
    """Return the library of a source for this machine, building it if necessary. Raises as ``load`` does."""
    capabilities = _capabilities() if _is_cuda(source) else ()
    if _is_cuda(source) and not capabilities:
        raise NotThereError(f"{loaded.name}/{source} needs a GPU, and torch sees none.")
    made = BUILT / loaded.name / Path(source).with_suffix(".so").name
    if not loaded.is_outside and _is_current(made, capabilities):
        return made
    try:
        return _compiled(loaded, source, capabilities)
    except NoCompilerError as error:
        raise NotThereError(str(error)) from error
    except OSError as error:
        raise NotThereError(f"{loaded.name}/{source} can't be built: {error}.") from error


def _is_cuda(source: str) -> bool:
    return source.endswith(".cu")


@functools.cache
def _capabilities() -> tuple[str, ...]:
    """Return the compute capabilities of this process's GPUs, such as ``90``."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = {"{}{}".format(*torch.cuda.get_device_capability(index)) for index in range(count)}
    return tuple(sorted(found))


def _is_current(made: Path, capabilities: tuple[str, ...]) -> bool:
    """Whether the pipeline's library is up to date with the sources, torch and this machine's GPUs, by its
    manifest."""
    try:
        record = json.loads(made.with_suffix(".json").read_text())
        recipe, inputs = record["recipe"], record["inputs"]
        have = [str(name) for name in recipe["architectures"]]
        root = loading.LIBRARY.parent
        return (
            (recipe["torch"], recipe["torch_cuda"]) == (torch.__version__, torch.version.cuda)
            and all(_runs(have, capability) for capability in capabilities)
            and all(_sha256(root / path) == digest for path, digest in inputs.items())
            and _sha256(made) == record["library"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _runs(architectures: list[str], capability: str) -> bool:
    """Whether code for one of the architectures runs on a GPU. Code for 8.0 runs on 8.9."""
    return any(
        one == capability or (one[:-1] == capability[:-1] and one[-1] <= capability[-1])
        for one in architectures
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compiled(loaded: Loaded, source: str, capabilities: tuple[str, ...]) -> Path:
    """Return the library in the cache, compiling it if it is missing."""
    cxx = compilers.find_cxx()
    nvcc = compilers.find_nvcc() if _is_cuda(source) else None
    flags: tuple[str, ...] = compilers.CXX_FLAGS
    if nvcc is not None:
        named = [_architecture(loaded, source, capability) for capability in capabilities]
        flags = (*compilers.NVCC_FLAGS, *compilers.targets(named))
    versions = [one.version for one in (cxx, nvcc) if one is not None]
    parts = [*_contents(loaded, source), *flags, *versions, torch.__version__, str(torch.version.cuda)]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    path = _own(cache()) / loaded.name / digest / Path(source).with_suffix(".so").name
    if path.is_file():
        return path
    with _lock(path.parent):
        if not path.is_file():
            _log.info("%s/%s is compiled, once: CUDA takes up to a minute", loaded.name, source)
            _make(loaded, source, path, (cxx, nvcc, flags))
    return path


def _make(
    loaded: Loaded, source: str, path: Path, how: tuple[compilers.Cxx, compilers.Nvcc | None, tuple[str, ...]]
) -> None:
    """Compile and link in a temporary folder, then move the library to ``path`` in one step."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        steps = compilers.commands(
            loaded.folder / source,
            made,
            loading.ROOT / "include",
            Path(torch.__file__).parent,
            torch.version.cuda is not None,
            *how,
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                log = path.with_suffix(".log")
                log.write_text(done.stdout + done.stderr)
                raise NotThereError(f"{loaded.name}/{source} does not compile; {log} says why.")
        made.replace(path)


def _architecture(loaded: Loaded, source: str, capability: str) -> str:
    """Return the architecture to compile for: ``90a`` instead of ``90`` if a provider of the source needs
    it."""
    needed = {
        one.needs.removeprefix("sm_")
        for one in loaded.kernel.providers
        if one.extension == source and one.needs and one.needs[-1].isalpha()
    }
    return next((name for name in needed if name[:-1] == capability), capability)


def _contents(loaded: Loaded, source: str) -> Iterator[str]:
    """Yield the name and SHA-256 of the source, the headers beside it, and the shared headers."""
    headers = (
        path
        for folder in (loaded.folder, loading.ROOT / "include")
        for path in sorted(folder.glob("*.*h"))
        if path.suffix in (".h", ".cuh")
    )
    for path in (loaded.folder / source, *headers):
        yield f"{path.name} {_sha256(path)}"


def cache() -> Path:
    """Return the folder that keeps the built libraries."""
    chosen = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(home) / "kernel_pipeline"


def _own(folder: Path) -> Path:
    """Make a folder if it does not exist, and return it. Raises NotThereError if it is a link, belongs to
    another user, or is writable by others."""
    from ..errors import UserError
    from ..machine.lock import own_folder  # imported for a build alone

    try:
        mend = f"remove it, or set {VARIABLE} to a folder that nobody else can write"
        return own_folder(folder, f"libraries in it are loaded; {mend}")
    except UserError as error:
        raise NotThereError(str(error)) from error


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock that keeps other processes from compiling the same library."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
