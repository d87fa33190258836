"""Compile Numba kernels for any architecture, on a host with or without a GPU.

As for Triton in ``programs``, the provider's own code launches the kernel, and the launch stops after
compilation. Numba and NVVM generate PTX. A real launch assembles the PTX with the ptxas inside nvJitLink;
this module uses the newest ptxas of the machine.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import util
from math import prod
from pathlib import Path
from re import search
from typing import Any

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.records.point import Point

NO_PTXAS = "neither a CUDA toolkit nor Triton brought ptxas, which assembles what Numba compiles."


OPTIONS = ("fastmath", "opt")
"""The options of ``cuda.jit(...)`` that change a kernel's code."""


@dataclass(frozen=True)
class NumbaLaunch:
    """A kernel's name and PTX, with its launch: threads per block and bytes of dynamic shared memory."""

    name: str
    ptx: str
    threads: int
    shared: int


def compile_point(where: str, point: Point, architecture: str) -> list[NumbaLaunch]:
    """Return the launches of a point of the kernel ``where``, compiled for an architecture. Afterwards this
    process can't launch Numba kernels any more. Raises whatever the kernel's files or Numba raise."""
    import torch

    from kernel_pipeline.execution import instance

    found: list[NumbaLaunch] = []
    only_compile(int(architecture), found)
    called = instance.load_instance(where, point)
    called.call(*called.inputs(torch.device("meta"), 0))
    return found


def assembled(ptx: str, architecture: str) -> bytes:
    """Assemble PTX into a cubin. Raises UserError with ptxas's message."""
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "numba.ptx"), Path(folder, "numba.cubin")
        source.write_text(ptx)
        done = subprocess.run(
            [find_ptxas(), "-lineinfo", f"-arch=sm_{architecture}", source, "-o", cubin],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(f"ptxas: {' '.join((done.stderr or done.stdout).split())[:400]}")
        return cubin.read_bytes()


@cache
def find_ptxas() -> Path:
    """Find the newest ptxas. Raises UserError if there is none."""
    found = []
    for path in _candidates():
        with suppress(OSError):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            if version := search(r"V(\d+)\.(\d+)", done.stdout):
                found.append(((int(version[1]), int(version[2])), path))
    if not found:
        raise UserError(NO_PTXAS)
    return max(found)[1]


def _candidates() -> Iterator[Path]:
    with suppress(UserError):
        yield find_nvcc().path.resolve().parent / "ptxas"
    triton = util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        yield from Path(triton.origin).parent.glob("backends/nvidia/bin/ptxas*")


def only_compile(capability: int, made: list[NumbaLaunch]) -> None:
    """Replace launches in this process. A launch then compiles the kernel for the compute capability (90 for
    sm_90) and appends it to ``made``."""
    from numba.cuda import cuda_paths
    from numba.cuda.cudadrv import nvrtc
    from numba.cuda.dispatcher import CUDADispatcher

    # Numba asks NVRTC for the supported architectures, even for a kernel without C++. A host without a GPU
    # may lack NVRTC, a library of 200 MB.
    cuda_paths._get_nvrtc_path = lambda: None
    nvrtc.get_arch_option = lambda major, minor, arch="": f"compute_{major}{minor}{arch}"

    def configured(dispatcher: Any, blocks: Any, threads: Any, stream: Any = 0, shared: int = 0) -> Any:
        del blocks, stream

        def compile_instead(*arguments: Any) -> None:
            ptx = _compiled(dispatcher, arguments, divmod(capability, 10))
            block = threads if isinstance(threads, Sequence) else (threads,)
            made.append(NumbaLaunch(dispatcher.py_func.__name__, ptx, prod(block), shared))

        return compile_instead

    CUDADispatcher.configure = configured


def _compiled(dispatcher: Any, arguments: Sequence[Any], capability: tuple[int, int]) -> str:
    """Return a kernel's PTX for arguments of these types. The Python function's name replaces Numba's symbol,
    which encodes all types in hundreds of characters."""
    from numba import cuda, types

    signature = types.void(*(_type_of(argument) for argument in arguments))
    options = {name: dispatcher.targetoptions[name] for name in OPTIONS if name in dispatcher.targetoptions}
    ptx, _ = cuda.compile_ptx(dispatcher.py_func, signature, cc=capability, lineinfo=True, **options)
    entry = search(r"\.entry\s+(\S+?)\(", ptx)
    assert entry is not None, "a kernel has an entry"
    return str(ptx).replace(entry[1], dispatcher.py_func.__name__)


def _type_of(argument: Any) -> Any:
    """Return the Numba type of a launch's argument. A tensor becomes a C-contiguous array."""
    import torch
    from numba import cuda, typeof, types

    if isinstance(argument, torch.Tensor):
        element = getattr(cuda.types, str(argument.dtype).removeprefix("torch."))
        return types.Array(element, argument.dim(), "C")
    return typeof(argument)
