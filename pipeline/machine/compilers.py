"""The compilers: which nvcc and which C++ compiler this machine has, and what they can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernels import toolchain
from kernels.toolchain import SYSTEM_CUDA, Cxx, NoCompilerError, Nvcc, demangle
from pipeline import UserError

__all__ = ["SYSTEM_CUDA", "Cxx", "Nvcc", "demangle", "find_cxx", "find_nvcc"]


def find_nvcc(environment: Mapping[str, str] | None = None, system_cuda: Path = SYSTEM_CUDA) -> Nvcc:
    """The CUDA compiler to use: the system's if it is CUDA 12 or newer, else the one from PyPI. Raises
    UserError when there is none."""
    try:
        return toolchain.find_nvcc(environment, system_cuda)
    except NoCompilerError as error:
        raise UserError(str(error)) from None


def find_cxx(environment: Mapping[str, str] | None = None) -> Cxx:
    """The C++ compiler to use: ``$CXX``, or the first of c++, g++ and clang++. Raises UserError when there
    is none."""
    try:
        return toolchain.find_cxx(environment)
    except NoCompilerError as error:
        raise UserError(str(error)) from None
