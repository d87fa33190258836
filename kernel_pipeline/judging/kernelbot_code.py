"""Run the code of a KernelBot task and of its submissions.

``generate_input`` returns any nested data. Its tensors are the inputs, without the outputs that are handed
in. Each call gets new memory for these, with undefined content, as a submission may return them.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import tracebacks
from ..arguments import tensors_of
from ..checking import wide
from ..contract import EPSILON, ITEM_BYTES
from ..loading import Tensors
from ..verification import poisoned_memory, unchanged
from .formats import Sizes, UnfitError
from .imported import ModuleFile
from .kernelbot import CHECK, FOLDER, INPUT, KERNEL, REFERENCE_FILE, SEED, TASK_FILE
from .sources import Resized, imported, seeded

SEEDS = 1 << 17
"""The number of seeds. Some tasks add the seed to their inputs, which float32 has to tell apart."""

PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)
"""The types that values beside tensors may have."""

TENSOR = object()
"""Stands for a tensor in the structure of outputs."""

MOST_SAID = 300
"""The number of characters of a checker's text that a verdict has."""

NEAR = 1e-6
"""The relative difference of a largest value from the largest of a dtype, at most."""

QUANTIZED = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""8-bit dtypes, by their names in the text of a task."""


class Space:
    """The modules of one copy of a task's files, which import each other by the files' names. No other module
    sees these names."""

    def __init__(self, folder: Path, device: str, key: str) -> None:
        self._paths = {path.stem: path for path in (folder / FOLDER).glob("*.py")}
        self._device = device
        self._key = f"{device} {key}"
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._modules: dict[Path, ModuleType] = {}

    def module(self, path: Path) -> ModuleType:
        """Import a file once."""
        if path not in self._modules:
            self._modules[path] = imported(path, Resized({}, self._device), self._key, self._builtins)
        return self._modules[path]

    def _import(self, name: str, *rest: Any, **named: Any) -> Any:
        level = named.get("level", rest[3] if len(rest) > 3 else 0)
        if level == 0 and name in self._paths:
            return self.module(self._paths[name])
        return builtins.__import__(name, *rest, **named)


@dataclass(frozen=True)
class Data:
    """The data of a call. ``leaves`` and ``spec`` are the flattened data, ``places`` the indices of tensors
    in ``leaves``, and ``outputs`` the indices of outputs that are handed in, by the output's number."""

    leaves: tuple[Any, ...]
    spec: Any
    places: tuple[int, ...]
    outputs: Mapping[int, int]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The indices of the inputs."""
        return tuple(place for place in self.places if place not in self.outputs.values())

    def emptied(self) -> Data:
        """Return the data without the contents of tensors."""
        places = set(self.places)
        leaves = (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") if place in places else x
            for place, x in enumerate(self.leaves)
        )
        return Data(tuple(leaves), self.spec, self.places, self.outputs)

    def filled(self, tensors: Tensors, is_wide: bool = False) -> Any:
        """Return the data with these inputs and new memory for outputs. With ``is_wide`` floating-point
        outputs are in float64."""
        leaves, device = list(self.leaves), tensors[0].device
        for place, x in zip(self.inputs, tensors, strict=True):
            dtype = leaves[place].dtype
            leaves[place] = x.view(dtype) if _is_packed(dtype) else x
        for place in self.outputs.values():
            x = leaves[place]
            dtype = torch.float64 if is_wide and x.is_floating_point() else x.dtype
            leaves[place] = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=device)
        return tree_unflatten(leaves, self.spec)


class KernelBotCode:
    """The code of a task and its submissions. ``learned`` has a word ``output:place`` for each output that is
    handed in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._structures: dict[str, tuple[list[Any], Any]] = {}

    def learn(self, sizes: Sizes, device: torch.device) -> tuple[str, ...]:
        """Return which tensors of the data are outputs that are handed in.

        An output has as many elements, and the answer does not depend on the tensor's content. Since this
        holds for some inputs of degenerate workloads, too, the content must also not depend on the seed, or
        the task's own code returns the tensor.
        """
        with poisoned_memory():
            data, other = (self._data(sizes, device, seed, ()) for seed in (0, 1))
        _check(data, other)
        kernel = self._function(REFERENCE_FILE, KERNEL, device)
        leaves = _copies(data)
        right = tensors_of(kernel(tree_unflatten(leaves, data.spec)))
        self._check_rounding(right)
        found: dict[int, int] = {}
        for place in reversed(data.places):
            x = data.leaves[place]
            fitting = (number for number, out in enumerate(right) if number not in found and _fits(x, out))
            number = next(fitting, None)
            is_memory = unchanged((x,), (other.leaves[place],)) or any(
                _is_view(out, leaves[place]) for out in right
            )
            if number is not None and is_memory and self._ignores(kernel, data, place, right):
                found[number] = place
        if len(found) == len(data.places):
            raise UnfitError("its answer does not depend on its inputs")
        return tuple(f"{number}:{place}" for number, place in sorted(found.items()))

    def _ignores(self, kernel: Callable[..., Any], data: Data, place: int, right: Tensors) -> bool:
        """Whether the answer is the same for other values of a tensor of the data."""
        for value in (1, 2):
            leaves = _copies(data)
            leaves[place].fill_(value)
            found = tensors_of(kernel(tree_unflatten(leaves, data.spec)))
            if [x.shape for x in found] != [x.shape for x in right] or not unchanged(found, right):
                return False
        return True

    def inputs(
        self, sizes: Sizes, device: torch.device, seed: int, learned: Sequence[str]
    ) -> tuple[Tensors, Tensors]:
        """Return the inputs for a seed. Packed dtypes, which hold several numbers, are given as bytes."""
        data = self._data(sizes, device, seed, learned)
        held = (data.leaves[place] for place in data.inputs)
        return tuple(x.view(torch.uint8) if _is_packed(x.dtype) else x for x in held), ()

    def call(
        self, provider: ModuleFile, sizes: Sizes, device: torch.device, learned: Sequence[str]
    ) -> Callable[..., Any]:
        """Return a provider's function. An output in a wider dtype than the memory that is handed in for it
        is rounded to the memory's dtype."""
        data = self._data(sizes, device, 0, learned).emptied()
        function = self._function(provider.file, provider.name, device)
        if provider.compiled:
            function = torch.compile(function, dynamic=False)
        dtypes = {number: data.leaves[place].dtype for number, place in data.outputs.items()}
        is_own, key = provider.name == KERNEL, str(sizes)

        def on_tensors(*tensors: torch.Tensor) -> Any:
            made = function(data.filled(tensors))
            if is_own and key not in self._structures:
                self._keep_structure(key, made)
            outputs = tensors_of(made)
            return tuple(_rounded(_detached(x), dtypes.get(number)) for number, x in enumerate(outputs))

        return on_tensors

    def answer(self, sizes: Sizes, device: torch.device, learned: Sequence[str]) -> Callable[..., Tensors]:
        """Return ``ref_kernel`` with float64 in place of its inputs' dtypes and of float32 in its code.
        Values that it rounds to smaller dtypes stay rounded."""
        data = self._data(sizes, device, 0, learned).emptied()
        function = self._function(REFERENCE_FILE, KERNEL, device)

        def answer(*tensors: torch.Tensor) -> Tensors:
            widened = tuple(wide(x).clone() for x in tensors)
            with in_float64():
                made = function(data.filled(widened, is_wide=True))
            self._keep_structure(str(sizes), made)
            return tensors_of(made)

        return answer

    def mode(self, sizes: Sizes, device: torch.device) -> None:
        """Return None: a task has no module."""

    def own_tolerance(self, dtype: torch.dtype) -> float:
        """Return 0: the task's checker decides."""
        return 0.0

    def error(self, sizes: Sizes, inputs: Tensors, outputs: Tensors, learned: Sequence[str]) -> str | None:
        """Return the error that ``check_implementation`` finds in outputs, or None."""
        device = inputs[0].device
        data = self._data(sizes, device, 0, learned).emptied()
        leaves, spec = self._structures[str(sizes)]
        rest = iter(outputs)
        given = tree_unflatten([next(rest) if leaf is TENSOR else leaf for leaf in leaves], spec)
        check = self._function(REFERENCE_FILE, CHECK, device)
        try:
            said = check(data.filled(tuple(x.clone() for x in inputs)), given)
        except Exception as error:  # a checker may fail for outputs that it does not expect
            said = tracebacks.described(error, [self.folder])
        return _complaint(said)

    def _data(self, sizes: Sizes, device: torch.device, seed: int, learned: Sequence[str]) -> Data:
        """Return the data that ``generate_input`` makes for a seed, on the device."""
        generate = self._function(REFERENCE_FILE, INPUT, device)
        seeds = {SEED: seed % SEEDS} if SEED in inspect.signature(generate).parameters else {}
        without = no_generators() if device.type == "meta" else nullcontext()
        with seeded(seed, device), without:
            leaves, spec = tree_flatten(generate(**sizes, **seeds))
        leaves = [x.detach().to(device) if isinstance(x, torch.Tensor) else x for x in leaves]
        places = tuple(place for place, x in enumerate(leaves) if isinstance(x, torch.Tensor))
        pairs = (word.split(":") for word in learned)
        return Data(tuple(leaves), spec, places, {int(number): int(place) for number, place in pairs})

    def _function(self, file: str, name: str, device: torch.device) -> Callable[..., Any]:
        path = self.folder / (f"{FOLDER}/{REFERENCE_FILE}" if file == REFERENCE_FILE else file)
        made: Callable[..., Any] = getattr(_space(self.folder, device.type, path.name).module(path), name)
        return made

    def _keep_structure(self, key: str, made: Any) -> None:
        leaves, spec = tree_flatten(made)
        self._structures[key] = [TENSOR if isinstance(x, torch.Tensor) else x for x in leaves], spec

    def _check_rounding(self, outputs: Tensors) -> None:
        """Raise UnfitError if the task is about an 8-bit dtype, and an output has the range of this dtype but
        not its values. Such a task accepts submissions that never round."""
        text = (self.folder / FOLDER / TASK_FILE).read_text().lower()
        for out in (wide(x) for x in outputs if x.is_floating_point() and x.numel() and x.itemsize > 1):
            for name, dtype in QUANTIZED.items():
                largest = torch.finfo(dtype).max
                fills = abs(float(out.abs().max()) / largest - 1) < NEAR
                if name in text and fills and not torch.equal(out.to(dtype).double(), out):
                    raise UnfitError(
                        f"its own code never rounds: an output has the range of {dtype}, up to {largest:g}, "
                        "and other values than this dtype"
                    )


@cache
def _space(folder: Path, device: str, key: str) -> Space:
    return Space(folder, device, key)


class _Float64(TorchFunctionMode):
    """Replaces float32 by float64 in torch's functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def widened(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        function = torch.Tensor.double if func is torch.Tensor.float else func
        return function(*map(widened, args), **{name: widened(x) for name, x in (kwargs or {}).items()})


class _NoGenerator(TorchFunctionMode):
    """Drops the generator of torch's functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*args, **{name: x for name, x in (kwargs or {}).items() if name != "generator"})


class _AnyGenerator(torch.Generator):
    """A generator whose device is ignored."""

    def __new__(cls, device: Any = None) -> _AnyGenerator:
        """Make a generator of a CPU."""
        return super().__new__(cls)


@contextmanager
def no_generators() -> Iterator[None]:
    """Inside this context generators may have the device ``meta``, which has no random numbers."""
    with mock.patch.object(torch, "Generator", _AnyGenerator), _NoGenerator():
        yield


@contextmanager
def in_float64() -> Iterator[None]:
    """Inside this context torch makes and computes float64 in place of float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(before)


def _check(data: Data, other: Data) -> None:
    """Raise UnfitError if the data of two seeds differ in more than the values of tensors."""
    is_same = data.spec == other.spec and len(data.leaves) == len(other.leaves)
    if not is_same or not data.places:
        raise UnfitError(f"{INPUT} returns no tensors, or other containers for another seed")
    for x, y in zip(data.leaves, other.leaves, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.shape != y.shape or x.stride() != y.stride() or x.dtype != y.dtype:
                raise UnfitError(f"{INPUT} returns tensors whose shapes depend on the seed")
        elif not isinstance(x, PLAIN):
            raise UnfitError(
                f"{INPUT} returns an object of type {type(x).__name__}, whose tensors can't be drawn anew"
            )
        elif x != y:
            raise UnfitError(f"{INPUT} returns {x!r} or {y!r}, depending on the seed")


def _copies(data: Data) -> list[Any]:
    """Return the leaves of the data, with tensors in memory of their own."""
    return [x.clone() if isinstance(x, torch.Tensor) else x for x in data.leaves]


def _is_view(x: torch.Tensor, of: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def _fits(x: torch.Tensor, out: torch.Tensor) -> bool:
    is_alike = x.numel() == out.numel() and x.is_floating_point() == out.is_floating_point()
    return is_alike and not _is_packed(x.dtype)


def _is_packed(dtype: torch.dtype) -> bool:
    """Whether an element of a dtype holds several numbers, as ``float4_e2m1fn_x2`` does."""
    name = str(dtype).removeprefix("torch.")
    return name not in EPSILON and name not in ITEM_BYTES


def _detached(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor without gradients. A method that a submission gave the tensor, which may compute the
    content, is not called, and a tensor of a class of the submission's own stays one."""
    return torch.Tensor.detach(x) if type(x) in (torch.Tensor, torch.nn.Parameter) else x


def _rounded(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    is_wider = dtype is not None and x.is_floating_point() and x.itemsize > dtype.itemsize
    return x.to(dtype) if is_wider else x


def _complaint(said: Any) -> str | None:
    """Return the error in a checker's result, or None. A checker returns a text, which is empty for right
    outputs, or None, or a flag that is True for them, or a flag and a text."""
    if isinstance(said, tuple) and len(said) == 2:
        is_right, text = said
    else:
        is_right, text = said if isinstance(said, bool) else not said, said
    if is_right:
        return None
    return f"the task's {CHECK} says: {' '.join(str(text).split())[:MOST_SAID]}"
