"""Run the reference of a definition in flashinfer-bench's format, and its solutions, on tensors."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from ..execution.faults import FaultyError
from ..loading import Tensors
from ..tensors import dtype_of
from . import imported
from .definition import (
    REFERENCE,
    WORKLOAD,
    WORKLOADS,
    DefinedWorkload,
    Definition,
    Random,
    Scalar,
    Solution,
    Spec,
    Stored,
    Tensor,
)
from .flashinferbench import BUILD, DEFINITION
from .formats import Sizes, UnfitError
from .imported import ModuleFile
from .sources import Resized

WIDE = {"float32", "float", "float16", "half", "bfloat16"}
"""The names of dtypes, and of a tensor's methods without arguments, that a reference in float64 has
``float64`` and ``double`` in place of. 8-bit floats stay: torch does not compute in them, so that a reference
converts them."""

NAMES = {"float4_e2m1": "float4_e2m1fn_x2"}
"""Dtypes that have another name in torch."""

INTEGERS = {torch.int8: 128}
"""Integers are drawn below this number and from its negative on, as flashinfer-bench does; ``MOST`` for other
dtypes."""

MOST = 1024

CPP = (".cpp", ".cc", ".cxx", ".c")
"""The endings of the files that a C++ compiler gets."""

SMALL_FLOATS = 2.0
"""The largest magnitude of an 8-bit float that is drawn."""


class Widened(ast.NodeTransformer):
    """Replaces the floating-point dtypes in a reference's code by float64."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace ``torch.float32``."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in WIDE:
            node.attr = "float64"
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace ``x.float()``."""
        self.generic_visit(node)
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in WIDE
            and not (node.args or node.keywords)
        ):
            node.func.attr = "double"
        return node


class FlashInferCode:
    """The reference and the solutions in a kernel's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _declared(self) -> Definition:
        return Definition.from_json((self._folder / DEFINITION).read_bytes())

    @cached_property
    def _workloads(self) -> dict[str, DefinedWorkload]:
        lines = (self._folder / WORKLOADS).read_bytes().splitlines()
        return {one.uuid: one for one in map(DefinedWorkload.from_json, lines)}

    def learn(self, sizes: Sizes, device: torch.device) -> tuple[str, ...]:
        """Check that the sizes keep the constraints, and that the reference returns outputs as they are
        declared. There is nothing else to learn."""
        if (broken := self._declared.broken(sizes)) is not None:
            raise UnfitError(f"the axes break the constraint `{broken}`")
        varied, kept = self.inputs(sizes, device, 0, ())
        own = imported.read(self._folder).modules[imported.REFERENCE]
        outputs, declared = self.call(own, sizes, device, ())(*varied, *kept), self._declared.outputs
        if len(outputs) != len(declared):
            raise UnfitError(f"its reference returns {len(outputs)} outputs, not {len(declared)}")
        for x, (name, one) in zip(outputs, declared.items(), strict=True):
            shape, dtype = self._declared.shape(one, sizes), torch_dtype(one)
            if (tuple(x.shape), x.dtype) != (shape, dtype):
                raise UnfitError(
                    f"its reference returns {name} with shape {tuple(x.shape)} and {x.dtype}, and the "
                    f"definition declares {shape} and {dtype}"
                )
        return ()

    def inputs(
        self, sizes: Sizes, device: torch.device, seed: int, learned: Sequence[str]
    ) -> tuple[Tensors, Tensors]:
        """Return the tensors that are drawn, and those of files, each in the definition's order."""
        generator = torch.Generator("cpu" if device.type == "meta" else device).manual_seed(seed)
        drawn, kept = [], []
        for name, declared, source in self._sources(sizes):
            shape = self._declared.shape(declared, sizes)
            if isinstance(source, Stored):
                kept.append(stored(name, source, shape, torch_dtype(declared)).to(device))
            elif isinstance(source, Random) and declared.shape is not None:
                x = random(shape, torch_dtype(declared), device, generator)
                is_odds = self._declared.op_type == "sampling" and name == "probs"
                drawn.append(torch.softmax(x, dim=-1) if is_odds else x)
        return tuple(drawn), tuple(kept)

    def call(
        self, provider: ModuleFile, sizes: Sizes, device: torch.device, learned: Sequence[str]
    ) -> Callable[..., Any]:
        """Return the reference, or a solution's function. One that takes its outputs as arguments gets new
        tensors at each call."""
        arranged = self._arranged(sizes)
        if provider.file == DEFINITION:
            own = self._run(device, lambda tree: tree)
            own = torch.compile(own, dynamic=False) if provider.compiled else own
            return lambda *tensors: self._tensors(own(*arranged(tensors)), device)
        spec = Solution.from_json((self._folder / provider.file).read_bytes()).spec
        if spec.language == "cuda" and device.type == "cpu":
            raise UnfitError("it is written in CUDA, and this machine has no GPU")
        function = loaded(self._folder, Path(provider.file).stem, spec)
        if not spec.destination_passing_style:
            return lambda *tensors: self._tensors(function(*arranged(tensors)), device)
        places = [
            (self._declared.shape(one, sizes), torch_dtype(one)) for one in self._declared.outputs.values()
        ]

        def into_outputs(*tensors: torch.Tensor) -> Tensors:
            outputs = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in places)
            function(*arranged(tensors), *outputs)
            return outputs

        return into_outputs

    def answer(self, sizes: Sizes, device: torch.device, learned: Sequence[str]) -> Callable[..., Tensors]:
        """Return the reference with float64 in place of its dtypes."""
        arranged, run = self._arranged(sizes), self._run(device, Widened().visit)

        def right(*tensors: torch.Tensor) -> Tensors:
            wide = tuple(x.double() if x.is_floating_point() and x.itemsize > 1 else x for x in tensors)
            outputs = self._tensors(run(*arranged(wide)), device, is_wide=True)
            return tuple(x.double() if x.is_floating_point() else x for x in outputs)

        return right

    def mode(self, sizes: Sizes, device: torch.device) -> None:
        """Return None: a definition has no module."""

    def own_tolerance(self, dtype: torch.dtype) -> float:
        """Return 0: the check of flashinfer-bench's own judge is not known."""
        return 0.0

    def _sources(self, sizes: Sizes) -> list[tuple[str, Tensor, Random | Scalar | Stored]]:
        """Return the name, the declaration and the source of each input."""
        given = self._workloads[str(sizes[WORKLOAD])].inputs
        return [(name, one, given.get(name, Random())) for name, one in self._declared.inputs.items()]

    def _arranged(self, sizes: Sizes) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
        """Return a function that puts tensors in the order of ``inputs`` among the numbers, in the
        definition's order. A random number is the same at each call."""
        arguments: list[Any] = []
        drawn: list[int] = []
        kept: list[int] = []
        generator = torch.Generator().manual_seed(0)
        for place, (_, declared, source) in enumerate(self._sources(sizes)):
            arguments.append(source.value if isinstance(source, Scalar) else None)
            if isinstance(source, Stored):
                kept.append(place)
            elif isinstance(source, Random) and declared.shape is not None:
                drawn.append(place)
            elif isinstance(source, Random):
                arguments[place] = random((), torch_dtype(declared), torch.device("cpu"), generator).item()
        places = (*drawn, *kept)

        def arranged(tensors: Sequence[torch.Tensor]) -> list[Any]:
            made = arguments.copy()
            for place, x in zip(places, tensors, strict=True):
                made[place] = x
            return made

        return arranged

    def _run(self, device: torch.device, change: Callable[[ast.AST], Any]) -> Callable[..., Any]:
        """Return the reference's function from its changed code."""
        path = self._folder / REFERENCE
        tree = ast.fix_missing_locations(change(Resized({}, device.type).module(ast.parse(path.read_text()))))
        made = ModuleType("_judged_reference")
        sys.modules[made.__name__] = made
        exec(compile(tree, str(path), "exec"), made.__dict__)
        found: Callable[..., Any] = made.__dict__["run"]
        return found

    def _tensors(self, returned: Any, device: torch.device, is_wide: bool = False) -> Tensors:
        """Return outputs as tensors: a number becomes a tensor without dimensions."""
        several = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
        dtypes = [torch_dtype(one) for one in self._declared.outputs.values()]
        if is_wide:
            dtypes = [torch.float64 if dtype.is_floating_point else dtype for dtype in dtypes]
        return tuple(
            torch.tensor(x, dtype=dtypes[place], device=device)
            if isinstance(x, (int, float)) and place < len(dtypes)
            else x
            for place, x in enumerate(several)
        )


def torch_dtype(declared: Tensor) -> torch.dtype:
    """Return the dtype of an input or output."""
    return dtype_of(NAMES.get(declared.dtype, declared.dtype))


def random(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Draw a tensor as flashinfer-bench does: normal values, and whole numbers of a small range."""
    if device.type == "meta":
        return torch.empty(shape, dtype=dtype, device=device)
    if dtype.is_floating_point:
        x = torch.randn(shape, device=device, generator=generator)
        return (x.clamp(-SMALL_FLOATS, SMALL_FLOATS) if dtype.itemsize == 1 else x).to(dtype)
    most = INTEGERS.get(dtype, MOST)
    low, high = (0, 2) if dtype == torch.bool else (-most, most)
    return torch.randint(low, high, shape, device=device, generator=generator).to(dtype)


def stored(name: str, source: Stored, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Read a tensor from a file. Raises UnfitError if it is not as the definition declares it."""
    from safetensors.torch import safe_open

    with safe_open(source.path, "pt") as file:
        if source.tensor_key not in file.keys():  # noqa: SIM118, since it is no dictionary
            raise UnfitError(f"{source.path} has no tensor {source.tensor_key}")
        found: torch.Tensor = file.get_tensor(source.tensor_key)
    if (tuple(found.shape), found.dtype) != (shape, dtype):
        raise UnfitError(
            f"{name} in {source.path} is {found.dtype} of shape {tuple(found.shape)}, not {dtype} of {shape}"
        )
    return found


def loaded(folder: Path, name: str, spec: Spec) -> Callable[..., Any]:
    """Return the function of a solution, whose sources are in the folder ``name``. Raises FaultyError if they
    don't compile."""
    sources = folder / name
    file, _, function = spec.entry_point.partition("::")
    texts = {str(path): path.read_bytes() for path in sorted(sources.rglob("*")) if path.is_file()}
    unique = f"_judged_{hashlib.sha256(repr(texts).encode()).hexdigest()[:16]}"
    if spec.language in ("cpp", "cuda"):
        try:
            library = compiled(sources, folder.parent / BUILD / f"{unique}.so", spec)
        except Exception as error:
            raise FaultyError("compile_error", f"it does not compile: {error}") from error
    else:
        package = ModuleType(unique)
        package.__path__ = [str(sources)]
        sys.modules[unique] = package
        library = importlib.import_module(".".join((unique, *Path(file).with_suffix("").parts)))
    found: Callable[..., Any] = getattr(library, function)
    return found


def compiled(sources: Path, made: Path, spec: Spec) -> Any:
    """Return the library of C++ and CUDA sources with the binding that a solution names. The first process
    compiles it, in a folder of its own, so that one that is ended leaves no lock."""
    made.parent.mkdir(parents=True, exist_ok=True)
    if not made.exists():
        cuda = [str(path) for path in sorted(sources.rglob("*.cu"))]
        cpp = [str(path) for path in sorted(sources.rglob("*")) if path.suffix in CPP]
        shared: dict[str, Any] = {"extra_include_paths": [str(sources)]}
        with TemporaryDirectory(dir=made.parent) as place:
            if spec.binding == "torch":
                from torch.utils import cpp_extension

                is_cuda, files = spec.language == "cuda", [*cpp, *cuda]
                options = shared | {"with_cuda": is_cuda, "build_directory": place}
                library = cpp_extension.load(made.stem, files, **options).__file__
            else:
                flags = ["-lcuda", "-lcublas"] if cuda else []
                options = shared | {"extra_ldflags": flags, "build_directory": place}
                library = tvm_ffi().cpp.build(name=made.stem, cpp_files=cpp, cuda_files=cuda, **options)
            Path(library).replace(made)
    if spec.binding != "torch":
        return tvm_ffi().load_module(str(made))
    found = importlib.util.spec_from_file_location(made.stem, made)
    assert found is not None and found.loader is not None, "a library that is there has a loader"
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def tvm_ffi() -> Any:
    """Return the package, which few solutions need."""
    importlib.import_module("tvm_ffi.cpp")
    return importlib.import_module("tvm_ffi")
