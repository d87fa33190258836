"""The fingerprint of the machine and its software: the environment that results depend on."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import sys
import sysconfig
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from .. import files
from ..errors import UserError
from ..files import LOCAL, write_atomically
from ..provider import Gpu
from ..records import variables
from ..records.environment import Environment
from . import compilers
from .compilers import SYSTEM_CUDA, Cxx, NoCompilerError, Nvcc, demangle
from .device import Device, capabilities, cpu, cpu_threads, driver_facts_of
from .torch_install import installed_torch

__all__ = ["SYSTEM_CUDA", "Cxx", "Nvcc", "demangle", "find_cxx", "find_nvcc"]


def find_nvcc(environment: Mapping[str, str] | None = None, system_cuda: Path = SYSTEM_CUDA) -> Nvcc:
    """Return the CUDA compiler to use: the system's if it is CUDA 12 or newer, else PyPI's. Raises
    UserError if there is none."""
    try:
        return compilers.find_nvcc(environment, system_cuda)
    except NoCompilerError as error:
        raise UserError(str(error)) from None


def find_cxx(environment: Mapping[str, str] | None = None) -> Cxx:
    """Return the C++ compiler to use: ``$CXX``, or the first of c++, g++ and clang++. Raises UserError if
    there is none."""
    try:
        return compilers.find_cxx(environment)
    except NoCompilerError as error:
        raise UserError(str(error)) from None


def fingerprint(device: Device) -> Environment:
    """Return the environment that the device's results depend on. Warn once of each unlisted variable."""
    found = flags(device.kind)
    name_unlisted(found)
    with ThreadPoolExecutor(3) as beside:
        # The compilers and the CUDA driver are queried in other processes, in parallel.
        nvcc, cxx = (beside.submit(_version, find) for find in (find_nvcc, find_cxx))
        known = beside.submit(_capabilities, device)
        capability, driver = None, None
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if device.kind == "cuda":
            facts = driver_facts_of(device)
            capability, driver, memory = "{}.{}".format(*facts.capability), facts.driver, facts.memory
        torch, gpu = installed_torch(), known.result()
        return Environment(
            gpu=device.slug,
            name=device.name,
            kind=device.kind,
            compute_capability=capability,
            # Whole GiB on a CPU, because Linux's own share of the memory changes from boot to boot.
            memory_mib=memory >> 20 if device.kind == "cuda" else (memory >> 30) << 10,
            driver=driver,
            cuda=torch.cuda,
            torch=torch.version,
            triton=metadata.version("triton"),
            python=".".join(platform.python_version_tuple()[:2]),
            nvcc=nvcc.result(),
            cxx=cxx.result(),
            cpu=cpu().name,
            cpu_threads=cpu_threads(),
            platform=f"{platform.system()}-{platform.machine()}",
            host=_host() if device.kind == "cpu" else None,
            flags=found,
            # docker/run sets it, because an image can't contain its own digest.
            image=os.environ.get("PIPELINE_IMAGE"),
            base_image=os.environ.get("PIPELINE_BASE_IMAGE"),
            l2_bytes=None if gpu is None else gpu.l2_cache,
            multiprocessors=None if gpu is None else gpu.multiprocessors,
            shared_memory=None if gpu is None else gpu.shared_memory,
        )


def flags(kind: str) -> dict[str, str]:
    """Return the environment variables that are in keys on a kind of device, sorted by name."""
    on_gpu = kind == "cuda"
    return {name: value for name, value in sorted(os.environ.items()) if variables.is_in_key(name, on_gpu)}


MET = LOCAL / "variables"
"""The file with the unlisted variables that this checkout has warned of, one per line."""


def name_unlisted(found: Mapping[str, str]) -> None:
    """Warn of variables that are in the key only because they are on neither list, once per variable and
    checkout."""
    met = set(files.content(MET).decode().split())
    for name in found:
        if not variables.is_listed(name) and name not in met:
            print(
                f"warning: {name}={found[name]} is part of the key of each measurement, because it may "
                "change code or speed. If it does not, add its name to IGNORED in "
                "kernel_pipeline/records/variables.py, else to COUNTED.",
                file=sys.stderr,
            )
            with suppress(UserError):  # a read-only checkout warns again
                files.append(MET, f"{name}\n".encode())


def drawn() -> str:
    """Return the random number that was drawn once for this checkout."""
    path = LOCAL / "host"
    if not path.exists():
        write_atomically(path, f"{secrets.token_hex(8)}\n".encode())
    return path.read_text()


def _host() -> str:
    """Return an anonymous id of this checkout on this host. It combines the checkout's random number with the
    machine's id, so that a copy of the folder on another machine has another id."""
    machine = Path("/etc/machine-id")
    machine_id = machine.read_bytes() if machine.is_file() else b""
    return hashlib.sha256(drawn().encode() + machine_id).hexdigest()[:16]


def _capabilities(device: Device) -> Gpu | None:
    """Return a GPU's properties. Returns None for a CPU, and if the driver fails: then the device can't be
    used either."""
    try:
        return capabilities(device)
    except UserError:
        return None


def _version(find: Callable[[], Nvcc | Cxx]) -> str | None:
    """Return the version of the compiler that a build would use, or None if there is none."""
    try:
        return find().version
    except UserError:
        return None


@cache
def package_folders() -> tuple[Path, ...]:
    """Return the folders of installed packages, including those on ``PYTHONPATH``, and of Python's own
    library.
    """
    paths = sysconfig.get_paths()
    own = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = [Path(path) for path in sys.path if any(Path(path).glob("*.dist-info"))]
    return tuple(dict.fromkeys(one for path in (*own, *others) for one in (path.absolute(), path.resolve())))
