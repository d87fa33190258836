"""The contract between a kernel and the pipeline: everything that a kernel's author needs to read.

A kernel is an operation: its problems, its inputs, its reference answer, and the least work of a problem. A
provider is one implementation of a kernel, with its own parameters. A kernel's folder holds the declaration
in ``__init__.py``, the reference in ``reference.py``, and the files that the providers' entries name. The
declaration must not import torch, so that commands that only plan start at once. The contract does not depend
on timing, DVC, Hydra or MLflow.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Value = int | bool | str
"""The type of a dimension's or a parameter's value."""

LANGUAGES = ("torch", "triton", "gluon", "cuda", "cpp", "numba")
"""The languages of providers."""

LANGUAGE_PACKAGES = {"numba": "numba-cuda[cu13]"}
"""The package that a language needs, as an argument of pip; the other languages need none."""

EPSILON = {
    **{"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7},
    **{"float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3},
    **{"float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2, "float8_e8m0fnu": 1.0},
}
"""Machine epsilon by dtype: the distance from 1 to the next larger number, as ``torch.finfo`` gives it. The
unit in the last place of a number x is between ``epsilon / 2 * abs(x)`` and ``epsilon * abs(x)``."""

ITEM_BYTES = {
    **{"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2},
    **{"int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4, "complex64": 8, "complex128": 16},
    **{"float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1},
}
"""Bytes of an element, by dtype."""


class ContractError(Exception):
    """An invalid declaration; the text is a sentence for the kernel's author."""


def one_of(
    *values: Value, default: Value | None = None, unit: str | None = None, omit_default: bool = False
) -> Any:
    """Declare a dimension or parameter that takes one of the given values. The first value is the default
    unless ``default`` is given.

    ``unit`` shortens labels: with ``unit="w"`` eight warps are ``8w``, with ``unit=""`` a block size is the
    number alone. Without a unit the label is ``name=value``. With ``omit_default`` labels omit the variable
    at its default, and a configuration that does not name it means the default. A point omits such a
    dimension at its default, too, so rows measured before the dimension was declared keep their points.
    """
    chosen = values[0] if default is None else default
    if chosen not in values:
        raise ContractError(f"the default {chosen!r} is none of the values {', '.join(map(repr, values))}.")
    return field(default=chosen, metadata={"values": values, "unit": unit, "omit_default": omit_default})


def same_as(name: str) -> Any:
    """Declare a dimension that defaults to the value of the dimension ``name``."""
    return field(default=None, metadata={"same_as": name})


@dataclass(frozen=True)
class Variable:
    """A declared dimension of a problem, or a declared parameter of a provider.

    ``values`` is None if any integer from 1 on is allowed. ``default`` is None for a required dimension and
    for a dimension that is ``same_as`` another.
    """

    name: str
    type: type
    values: tuple[Value, ...] | None
    default: Value | None
    unit: str | None = None
    same_as: str | None = None
    omit_default: bool = False

    def check(self, value: object) -> Value:
        """Return the value if it is valid. Raises ValueError with a clause that names the valid values."""
        if self.type is bool and value in (0, 1) and not isinstance(value, str):
            value = bool(value)
        if type(value) is not self.type:
            kind = {int: "a whole number", bool: "true or false", str: "a word"}[self.type]
            raise ValueError(f"must be {kind}, not {value!r}")
        if self.values is not None and value not in self.values:
            raise ValueError(f"must be {_either(self.values)}, not {shown(value)}")
        if self.values is None and self.type is int and typing.cast("int", value) < 1:
            raise ValueError(f"must be at least 1, not {value}")
        return typing.cast("Value", value)


def shown(value: object) -> str:
    """Return a value as it is written on a command line and in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _either(values: Sequence[Value]) -> str:
    words = [shown(value) for value in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def variables(declared: type) -> dict[str, Variable]:
    """Return the variables that a dataclass of dimensions or parameters declares, in their order. Raises
    ContractError for a field that is not int, bool or str, and for a str field without values."""
    hints = typing.get_type_hints(declared)
    found = {}
    for one in dataclasses.fields(declared):
        kind = hints[one.name]
        if isinstance(kind, types.UnionType):  # a ``same_as`` dimension is declared ``int | None``
            kind = next(member for member in typing.get_args(kind) if member is not type(None))
        if kind not in (int, bool, str):
            raise ContractError(f"{declared.__name__}.{one.name} must be int, bool or str, not {kind}.")
        values = one.metadata.get("values")
        if kind is bool and values is None:
            values = (False, True)
        if kind is str and values is None and "same_as" not in one.metadata:
            raise ContractError(f"{declared.__name__}.{one.name} is a str: list its values with one_of(...).")
        default = None if one.default is dataclasses.MISSING else one.default
        found[one.name] = Variable(
            name=one.name,
            type=kind,
            values=values,
            default=default,
            unit=one.metadata.get("unit"),
            same_as=one.metadata.get("same_as"),
            omit_default=one.metadata.get("omit_default", False),
        )
    return found


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


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed against the reference: ``|out - ref| <= atol + rtol * |ref|``. For complex
    numbers it holds for the real and the imaginary part.

    The reference is computed in float64 from inputs that are already rounded to their dtype. With ``rtol`` at
    ``EPSILON[dtype]`` an output may be off by one unit in the last place; rounding the output takes half of
    that. A wider tolerance hides mistakes: give its reason in a comment.
    """

    rtol: float
    atol: float


@dataclass(frozen=True)
class Work:
    """The least work of a problem.

    ``bytes`` is the memory traffic with each input read once and each output written once. ``operations``
    counts operations by arithmetic: ``float32``, ``tf32``, ``bfloat16``, ``float16``, ``float8_e4m3fn``,
    ``float8_fast_accum``, ``int8``.
    """

    bytes: int
    operations: Mapping[str, int]

    @property
    def flops(self) -> int:
        """The sum of the operations of all arithmetics."""
        return sum(self.operations.values())


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
        ``torch.ops.<kernel>.cuda``. The entry is called as ``f(*inputs, **arguments, **parameters)`` and
        returns a new tensor, or a tuple of new tensors. Inputs that only some problems have default to None.
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
        is not timed; a cold call finds the converted inputs outside the cache.
    compile_weight:
        ``compile_weight(parameters)`` returns the relative compile time of a configuration. Configurations
        with the longest compile time are compiled first.
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
    compile_weight: Callable[[Any], float] | None = None

    def __post_init__(self) -> None:
        file, colon, function = self.entry.partition(":")
        if not colon or not function:
            raise ContractError(f"entry {self.entry!r} of {self.name} must be FILE:FUNCTION.")
        suffix = PurePosixPath(file).suffix
        if suffix in (".cu", ".cpp") and self.extension is None:
            object.__setattr__(self, "extension", file)
        if not self.language:
            object.__setattr__(self, "language", self._told_language(file, suffix))
        if self.language not in LANGUAGES:
            raise ContractError(f"{self.name}: say which language {file} is, one of {', '.join(LANGUAGES)}.")
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

    def variables(self) -> dict[str, Variable]:
        """Return the declared parameters; empty for a provider without parameters."""
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


def as_it_is(problem: Any) -> Any:
    """Return the problem itself: the default ``interpreted``, for a kernel that an interpreter runs whole."""
    return problem


@dataclass(frozen=True)
class Kernel:
    """An operation, its reference and its providers.

    problem:
        A frozen dataclass of the problem's dimensions, including the dtype and other words.
    size:
        The dimensions that a single size stands for.
    work:
        ``work(problem)`` returns the least work, as the kernel's docstring counts it.
    tolerance:
        ``tolerance(problem)`` returns the tolerance of all outputs, or a tuple with one for each output.
    headline:
        The rate that is shown for the kernel: ``gbps`` or ``tflops``.
    arguments:
        The dimensions that entries and the reference take as named arguments beside the inputs, because they
        do not follow from an input's shape or dtype, such as ``causal``.
    in_place:
        Whether entries overwrite the first inputs with the outputs, and return these or nothing.
    reference:
        The file that defines three functions. ``inputs(problem, device, seed)`` returns seeded random
        tensors, never zeros. ``reference(*inputs, **arguments)`` returns the answer in float64, or exactly in
        integers. ``outputs(problem)`` returns the shape and dtype of each output.
    interpreted:
        ``interpreted(problem)`` returns the problem, reduced to a size that an interpreter runs in seconds.
    largest:
        The largest finite magnitude of an input for which the tolerance is guaranteed.
    any_order:
        Whether each input stays valid with its elements in any other order. Inputs must then have no
        structure (sorted, symmetric, normalised), and must not hold indices into each other. Further sets
        are then made by permuting the first set, where ``inputs`` would take too long.
    comparison:
        The function in the reference's file that verifies outputs, for a kernel with more than one right
        answer. ``f(problem, inputs, outputs, reference)`` returns a sentence that describes the error, or
        None. It replaces the tolerance. ``reference`` is the reference's result, of any shape.
    as_made:
        Whether the tolerance is guaranteed only for inputs as ``inputs`` makes them: finite and of that
        magnitude.
    baseline:
        The provider that the other providers are compared with ("x torch").
    """

    problem: type
    size: tuple[str, ...]
    work: Callable[[Any], Work]
    tolerance: Callable[[Any], Tolerance | tuple[Tolerance, ...]]
    providers: Sequence[Provider]
    headline: str = "gbps"
    arguments: tuple[str, ...] = ()
    in_place: bool = False
    reference: str = "reference.py"
    interpreted: Callable[[Any], Any] = as_it_is
    any_order: bool = False
    comparison: str | None = None
    largest: float = math.inf
    as_made: bool = False
    baseline: str = "torch"

    def __post_init__(self) -> None:
        known = variables(self.problem)
        for name in (*self.size, *self.arguments):
            if name not in known:
                raise ContractError(f"{name} is no dimension; the problem has {', '.join(known)}.")
        if self.headline not in ("gbps", "tflops"):
            raise ContractError(f"headline must be gbps or tflops, not {self.headline!r}.")
        names = [provider.name for provider in self.providers]
        if self.baseline not in names:
            raise ContractError(f"baseline {self.baseline!r} is no provider; there are {', '.join(names)}.")
        if len(set(names)) < len(names):
            raise ContractError(f"two providers have the same name: {', '.join(names)}.")
        sources = {provider.extension for provider in self.providers if provider.extension}
        stems = [PurePosixPath(source).stem for source in sources]
        if len(set(stems)) < len(stems):
            written = ", ".join(sorted(sources))
            raise ContractError(f"two extensions differ only in their suffix: {written}. Rename one.")
        for provider in self.providers:
            if clash := known.keys() & provider.variables().keys():
                raise ContractError(
                    f"{', '.join(clash)} of {provider.name} is also the name of a dimension; rename it."
                )

    def provider(self, name: str) -> Provider:
        """Return the provider of this name. Raises KeyError for an unknown name."""
        return {provider.name: provider for provider in self.providers}[name]

    def dimensions(self) -> dict[str, Variable]:
        """Return the problem's dimensions, in their order."""
        return variables(self.problem)


def bytes_of(dtype: str, *shapes: Sequence[int]) -> int:
    """Return the total bytes of contiguous tensors of one dtype with the given shapes."""
    return ITEM_BYTES[dtype] * sum(map(math.prod, shapes))


def summary(module: types.ModuleType) -> str:
    """Return the first paragraph of a kernel's docstring, on one line."""
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
