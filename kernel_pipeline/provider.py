"""Providers, the implementations of a kernel. A kernel's author imports the names of this module from
``contract``."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from .declared import ContractError, Variable, variables

LANGUAGES = ("torch", "triton", "gluon", "cuda", "cpp", "numba")
"""The languages of providers."""

LANGUAGE_PACKAGES = {"numba": "numba-cuda[cu13]"}
"""The package that a language needs, as an argument of pip; the other languages need none."""


@dataclass(frozen=True)
class Gpu:
    """The properties of a GPU that decide whether a configuration fits; known without torch.

    ``capability`` is the compute capability, such as ``(9, 0)``. ``shared_memory`` is the most that a block
    may use, and ``l2_cache`` is the size of the device's L2 cache, both in bytes.
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int
    l2_cache: int


def nothing_against(problem: Any, parameters: Any, gpu: Gpu | None) -> str | None:
    """Return None: the default ``fits``, for a provider whose configurations all fit."""
    del problem, parameters, gpu
    return None


@dataclass(frozen=True)
class Provider:
    """One implementation of a kernel.

    entry:
        ``FILE:FUNCTION`` in the kernel's folder. ``triton.py:softmax_row`` is a Python function.
        ``cuda.cu:cuda`` is an operator, which the library built from the file registers as
        ``torch.ops.<kernel>.cuda``. The entry is called as ``f(*inputs, **arguments, **parameters)``, with
        named inputs as ``f(**inputs, **arguments, **parameters)``, and returns a new tensor, or new tensors
        in the structure of ``outputs``. Inputs that only some problems have default to None.
        For inputs that the entry refuses, a Python function raises ValueError with a sentence, and an
        operator raises RuntimeError.
    parameters:
        A frozen dataclass of the tunable values, or None.
    fits:
        ``fits(problem, parameters, gpu)`` returns the reason why the provider can't compute the problem in
        this configuration ("one block holds a row: ..."), or None if it can. ``gpu`` is None on a host
        without a GPU.
    language:
        One of ``LANGUAGES``. By default it follows from the extension's or the entry's file: ``.cu`` is
        ``cuda``, ``.cpp`` is ``cpp``, and ``triton.py`` or ``triton_tma.py`` is ``triton``; likewise
        ``torch``, ``gluon`` and ``numba``.
    compiled:
        Whether the entry is called through ``torch.compile``.
    extension:
        The C++ or CUDA source that is built and loaded before the entry is called. By default the entry's
        file if that is a ``.cu`` or ``.cpp`` file.
    devices:
        The device types on which the provider is timed; by default they follow from the language. On a CPU a
        Triton provider is verified by Triton's interpreter, and a Numba provider by Numba's simulator.
    needs:
        The lowest compute capability, such as ``sm_80``; with a letter, such as ``sm_90a``, the only
        architecture. For ``sm_90a`` the CUDA source is compiled for ``sm_90a`` instead of ``sm_90``. The
        source must compile to nothing for other architectures, by ``#ifdef __CUDA_ARCH_FEAT_SM90_ALL``.
    package:
        The PyPI package of a peer: an implementation that is neither ours nor torch's. A peer's outputs are
        verified like those of any other provider.
    textbook:
        Whether the provider is the textbook form of the algorithm, for comparison.
    reference:
        A file with its own ``inputs`` and ``reference``, for a provider that takes its inputs in another form
        than the kernel's, such as weights that are dequantised, packed or compressed once, before any call.
        The file makes the same problem from the same seed, and the outputs are the kernel's. The conversion
        is not timed; a cold call finds the converted inputs outside the cache. For weights whose prepared
        form gives the kernel's own answer, declare ``prepare`` instead.
    prepare:
        ``FILE.py:FUNCTION`` in the kernel's folder, which prepares the kernel's ``weights``: packs, casts or
        transposes them once, as when a model is loaded. ``prepare(problem, weights)`` gets a tuple of the
        weights and returns a tensor or a tuple of tensors, whose shapes, strides and dtypes depend on the
        problem alone. The entry takes them at the place of the first weight, instead of the weights. It is
        called for each set of inputs, and its time is kept apart. The entry must not write to them.
    compile_weight:
        ``compile_weight(parameters)`` returns the relative compile time of a configuration. Configurations
        with the longest compile time are compiled first.
    steps:
        ``steps(problem, parameters, gpu)`` returns how long a launch keeps the busiest multiprocessor, in a
        unit of the configuration's own: for example the waves of blocks times the steps of each block. From
        one problem to another the time of a configuration is predicted to grow as this does
        (``kernel_pipeline/ops/growth.py``). If one provider declares it, each of ours and the baseline do.
    """

    name: str
    entry: str
    parameters: type | None = None
    fits: Callable[[Any, Any, Gpu | None], str | None] = nothing_against
    language: str = ""
    compiled: bool = False
    extension: str | None = None
    devices: tuple[str, ...] = ()
    needs: str | None = None
    package: str | None = None
    textbook: bool = False
    reference: str | None = None
    prepare: str | None = None
    compile_weight: Callable[[Any], float] | None = None
    steps: Callable[[Any, Any, Gpu], float] | None = None

    def __post_init__(self) -> None:
        file, colon, function = self.entry.partition(":")
        if not colon or not function:
            raise ContractError(f"entry {self.entry!r} of {self.name} must be FILE:FUNCTION.")
        if self.prepare is not None and not re.fullmatch(r".+\.py:\w+", self.prepare):
            raise ContractError(f"prepare {self.prepare!r} of {self.name} must be FILE.py:FUNCTION.")
        if self.prepare is not None and self.reference is not None:
            raise ContractError(f"{self.name} has prepare and reference: leave one of them out.")
        suffix = PurePosixPath(file).suffix
        if suffix in (".cu", ".cpp") and self.extension is None:
            object.__setattr__(self, "extension", file)
        if not self.language:
            object.__setattr__(self, "language", self._told_language(file, suffix))
        if self.language not in LANGUAGES:
            raise ContractError(f"{self.name}: name the language of {file}, one of {', '.join(LANGUAGES)}.")
        if not self.devices:
            by_language = {"torch": ("cpu", "cuda"), "cpp": ("cpu",)}
            object.__setattr__(self, "devices", by_language.get(self.language, ("cuda",)))

    def _told_language(self, file: str, suffix: str) -> str:
        source = PurePosixPath(self.extension or file)
        if source.suffix in (".cu", ".cpp"):
            return {".cu": "cuda", ".cpp": "cpp"}[source.suffix]
        return PurePosixPath(file).stem.partition("_")[0] if suffix == ".py" else ""

    @property
    def file(self) -> str:
        """The entry's file, relative to the kernel's folder."""
        return self.entry.partition(":")[0]

    @property
    def function(self) -> str:
        """The name of the entry's function or operator."""
        return self.entry.partition(":")[2]

    @property
    def is_own(self) -> bool:
        """Whether the implementation is written in this repository, not by torch or a peer."""
        return self.package is None and self.language != "torch"

    @property
    def requires(self) -> str | None:
        """The package that the provider needs, as an argument of pip: the peer's or the language's
        package."""
        return self.package or LANGUAGE_PACKAGES.get(self.language)

    @property
    def is_installed(self) -> bool:
        """Whether the required package is installed; imports nothing."""
        if self.requires is None:
            return True
        try:
            return bool(importlib.metadata.version(self.requires.partition("[")[0]))
        except importlib.metadata.PackageNotFoundError:
            return False

    @property
    def interpreted(self) -> bool:
        """Whether an interpreter or a simulator can verify the provider on a host without a GPU."""
        return self.language in ("triton", "numba") and self.package is None

    @property
    def compiles_ahead(self) -> bool:
        """Whether configurations are compiled ahead of the measurement. Triton's compiler takes about a
        second for each configuration. Numba compiles a function once for each dtype, whatever the launch."""
        return self.language == "triton" and self.package is None

    def variables(self) -> Mapping[str, Variable]:
        """Return the declared parameters, read-only; empty for a provider without parameters."""
        return {} if self.parameters is None else variables(self.parameters)

    def runs_on(self, gpu: Gpu) -> str | None:
        """Return the reason why the provider can't run on this GPU, or None."""
        if self.needs is None:
            return None
        wanted = self.needs.removeprefix("sm_")
        only = wanted[-1].isalpha()
        digits = wanted.rstrip("abcdefghijklmnopqrstuvwxyz")
        capability = (int(digits[:-1]), int(digits[-1]))
        if gpu.capability == capability or (not only and gpu.capability > capability):
            return None
        return f"needs {self.needs}, this GPU is sm_{gpu.capability[0]}{gpu.capability[1]}"
