"""Where torch.compile and Triton keep what they compile, and what Inductor asks of this host's C++ compiler,
asked once.

Before its first kernel for a CPU, Inductor compiles and loads a trial of each vector instruction set that
the CPU has: eight seconds the first time, one in every process after it (torch/_inductor/cpu_vec_isa.py).
Where the best of them passes, ``TORCHINDUCTOR_VEC_ISA_OK=1`` says so to later processes. With that kernel it
compiles its own headers, five seconds, and keeps them in its cache for every kernel after it.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from ..files import LOCAL
from ..machine import lock
from ..machine.fingerprint import find_cxx
from ..machine.lock import runtime_folder
from ..machine.reaper import under_reaper
from ..machine.torch_install import installed_torch
from ..records.base import digest

PASSED = "TORCHINDUCTOR_VEC_ISA_OK"
CACHE = "TORCHINDUCTOR_CACHE_DIR"
TRITON_CACHE = "TRITON_CACHE_DIR"
MEND = "code that is compiled there is run; remove it"
COMPILES_ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}

TRIAL = """
from contextlib import suppress

import torch
from torch._inductor import config, cpu_vec_isa

have = cpu_vec_isa.x86_isa_checker()
sets = [one for one in cpu_vec_isa.supported_vec_isa_list if all(name in have for name in str(one).split())]
if not (sets and sets[0]):
    raise SystemExit(1)
config.cpp.vec_isa_ok = True
with suppress(Exception):
    torch.compile(torch.square)(torch.ones(64, 64))
"""
"""Exits with 0 where the best that the CPU has passes, which is the one that is taken; then there is a first
kernel, too."""

CPUINFO = Path("/proc/cpuinfo")


def variables() -> dict[str, str]:
    """What the environment of a process that runs torch.compile has to hold: no pool of compilers, which
    costs more to start than a kernel takes and outlives a worker that is killed; its caches; and what is
    known. Raises UserError as ``caches`` does."""
    found = COMPILES_ALONE | caches()
    if PASSED not in os.environ and _is_noted():
        found[PASSED] = "1"
    return found


def caches() -> dict[str, str]:
    """Where torch.compile and Triton keep compiled code, unless the caller says.

    Raises UserError where the folder is somebody else's: its code is run.
    """
    found = {}
    if CACHE not in os.environ:
        found[CACHE] = str(cache())
    if TRITON_CACHE not in os.environ:
        found[TRITON_CACHE] = str(lock.own_folder(runtime_folder() / "triton", MEND))
    return found


def cache() -> Path:
    """The folder of torch.compile's code, which this user alone can write. Torch's own lies among the
    temporary files, under a name that any account can take first, with code of its own in it; what torch
    keeps there all the same, precompiled headers, is this user's alone, too."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = f"uid_{os.getuid()}"
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    lock.own_folder(Path(tempfile.gettempdir(), f"torchinductor_{user}"), MEND)
    return lock.own_folder(runtime_folder() / "inductor", MEND)


def is_tried() -> bool:
    """Whether it is known, or was said by whoever set the variable."""
    return PASSED in os.environ or _is_noted()


@contextmanager
def trying(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Try the instruction sets in a process of its own meanwhile, and note it if the best passes. Left by an
    exception, it waits for nothing."""
    process = subprocess.Popen(
        under_reaper([sys.executable, "-c", TRIAL]),
        env={CACHE: str(cache()), **(os.environ if environment is None else environment), **COMPILES_ALONE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        if process.wait() == 0:
            note = _note()
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
    finally:
        process.terminate()
        process.wait()


def _is_noted() -> bool:
    # Where nothing ever passed, as on most hosts with a GPU, no compiler need be asked.
    return _notes().is_dir() and _note().exists()


def _notes() -> Path:
    return LOCAL / "inductor"


def _note() -> Path:
    """The file that says that it passed, for this torch, compiler and CPU."""
    try:
        # Inductor takes this one whatever c++ is.
        compiler = str(find_cxx({"CXX": "g++", **os.environ}))
    except UserError:
        compiler = ""
    flags = next((line for line in _lines(CPUINFO) if line.startswith("flags")), "")
    return _notes() / digest([installed_torch().version, compiler, flags])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
