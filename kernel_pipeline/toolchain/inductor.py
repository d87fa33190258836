"""The caches of compilers, and Inductor's checks of this host's vector instructions.

Before its first kernel for a CPU, Inductor compiles and loads a test program for each vector instruction set
of the CPU. This takes eight seconds the first time, and one second in every later process
(torch/_inductor/cpu_vec_isa.py). If the best instruction set passes, ``TORCHINDUCTOR_VEC_ISA_OK=1`` lets
later processes skip the checks. With the first kernel Inductor also precompiles its headers, which takes five
seconds, and keeps them in its cache.
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
PACKAGE_CACHES = {"QUACK_CACHE_DIR": "quack", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attention"}
"""The variables of packages that compile by the CuTe DSL, and the names of their folders."""

FLASH_ATTENTION_CACHED = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
"""Without it FlashAttention-4 compiles each shape again in each process, for about ten seconds."""

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
"""A script that exits with 0 if the CPU's best instruction set, which Inductor uses, passes. It then compiles
a first kernel, too."""

CPUINFO = Path("/proc/cpuinfo")


def variables() -> dict[str, str]:
    """Return the environment variables for a process that runs kernels: the caches, the known result of
    the checks, and no pool of processes for torch.compile. Starting the pool takes longer than compiling a
    kernel, and the pool outlives a killed worker. Raises UserError as ``caches`` does."""
    found = COMPILES_ALONE | caches()
    found |= {name: value for name, value in FLASH_ATTENTION_CACHED.items() if name not in os.environ}
    if PASSED not in os.environ and _is_noted():
        found[PASSED] = "1"
    return found


def caches() -> dict[str, str]:
    """Return the variables that set the caches of torch.compile, Triton and other packages, unless the
    environment sets them. Their own folders lie among temporary files, where another account could create
    them first.

    Raises UserError if a folder is not this user's alone, because the code in it is run.
    """
    found = {}
    if CACHE not in os.environ:
        found[CACHE] = str(cache())
    if TRITON_CACHE not in os.environ:
        found[TRITON_CACHE] = str(lock.own_folder(runtime_folder() / "triton", MEND))
    for name, folder in PACKAGE_CACHES.items():
        if name not in os.environ:
            found[name] = str(lock.own_folder(runtime_folder() / folder, MEND))
    return found


def cache() -> Path:
    """Return the folder of torch.compile's code, which only this user can write.

    Torch's default folder is among the temporary files, under a name that another account could create first
    and fill with its own code. Torch still keeps precompiled headers there, so this function also makes sure
    that the default folder belongs to this user alone.
    """
    headers()
    return lock.own_folder(runtime_folder() / "inductor", MEND)


def headers() -> Path:
    """Return torch's default folder, with precompiled headers, as this user's alone."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the account has no name
        user = f"uid_{os.getuid()}"
    user = re.sub(r'[\\/:*?"<>|]', "_", user)
    return lock.own_folder(Path(tempfile.gettempdir(), f"torchinductor_{user}"), MEND)


def is_tried() -> bool:
    """Whether the best instruction set is known to pass, by an earlier trial or by the variable."""
    return PASSED in os.environ or _is_noted()


@contextmanager
def trying(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Try the instruction sets in another process while the body runs, and record it if the best passes. If
    the body raises an exception, end the process at once."""
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
    # Without the folder no trial has passed, as on most hosts with a GPU: skip starting the compiler.
    return _notes().is_dir() and _note().exists()


def _notes() -> Path:
    return LOCAL / "inductor"


def _note() -> Path:
    """Return the file that records a passed trial for this torch, compiler and CPU."""
    try:
        # Inductor uses g++ whatever c++ is.
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
