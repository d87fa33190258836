"""Every kernel keeps the contract, whatever it computes."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernels
from kernels.contract import (
    Kernel,
    Shape,
    elements_together,
    known_columns,
    known_columns_of_few,
    launch_grid,
)
from kernels.point import AXES as AXIS_NAMES
from tests.kernels.kernel_cases import EVERY, FLOATS, KERNELS, Case, params, small

CPU = torch.device("cpu")


def test_names_are_the_folders() -> None:
    assert {"gelu", "softmax", "square"} <= set(kernels.names())
    assert all((kernels.ROOT / name / "__init__.py").is_file() for name in kernels.names())


@pytest.mark.parametrize("name", ["sofmax", "contract", "", ".."])
def test_an_unknown_name_raises(name: str) -> None:
    with pytest.raises(KeyError):
        kernels.load(name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_named_as_its_folder_and_its_providers_apart(kernel: Kernel) -> None:
    assert kernel is kernels.load(kernel.name)
    names = [provider.name for provider in kernel.providers]
    assert len(set(names)) == len(names)
    assert kernel.provider(kernel.baseline).name == kernel.baseline
    with pytest.raises(KeyError):
        kernel.provider("nobody")


@pytest.mark.parametrize("case", params(EVERY))
def test_a_provider_takes_the_inputs_and_its_axes(case: Case) -> None:
    assert set(case.provider.axes) <= set(AXIS_NAMES)
    inputs = case.kernel.inputs(small(case.kernel, 8), torch.float32, CPU, 0)
    if case.provider.axes:
        parameters = list(inspect.signature(case.provider.call).parameters)
        assert parameters[len(inputs) :] == list(case.provider.axes)


@pytest.mark.parametrize("case", params(EVERY))
def test_a_provider_has_its_source_and_its_devices(case: Case) -> None:
    assert (kernels.ROOT / case.kernel.name / case.provider.source).is_file()
    devices = {"triton.py": ("cuda",), "cuda.cu": ("cuda",), "cpp.cpp": ("cpu",)}
    assert case.provider.devices == devices.get(case.provider.source, ("cpu", "cuda"))


@pytest.mark.parametrize("case", params(case for case in EVERY if case.provider.extension))
def test_an_extension_is_called_by_its_providers_name(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def operator(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        out: torch.Tensor = arguments[0]
        return out

    monkeypatch.setattr(
        torch.ops, case.kernel.name, SimpleNamespace(**{case.provider.name: operator}), raising=False
    )
    inputs = case.kernel.inputs(small(case.kernel, 8), torch.float32, CPU, 0)
    axes = case.axes()
    assert torch.equal(case.provider.call(*inputs, **axes), inputs[0])
    (arguments,) = calls
    assert all(map(torch.equal, arguments[: len(inputs)], inputs))
    assert arguments[len(inputs) :] == tuple(axes.values())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_inputs_are_seeded_and_never_zeros(kernel: Kernel, dtype: torch.dtype) -> None:
    shape = small(kernel, 64)
    inputs = kernel.inputs(shape, dtype, CPU, 7)
    assert inputs[0].shape == shape
    assert all(tensor.dtype == dtype and tensor.count_nonzero() > 0 for tensor in inputs)
    assert all(map(torch.equal, inputs, kernel.inputs(shape, dtype, CPU, 7)))
    assert not all(map(torch.equal, inputs, kernel.inputs(shape, dtype, CPU, 8)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_reference_is_float64_and_the_tolerance_small(kernel: Kernel, dtype: torch.dtype) -> None:
    inputs = kernel.inputs(small(kernel, 8), dtype, CPU, 0)
    assert kernel.reference(*inputs).dtype == torch.float64
    tolerance = kernel.tolerance(dtype)
    assert 0 < tolerance.rtol < 0.1
    assert 0 <= tolerance.atol < 0.1


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_a_size_moves_and_computes_grows_with_it(kernel: Kernel) -> None:
    narrow, wide = kernel.shape(64), kernel.shape(128)
    assert 0 < kernel.bytes(narrow, torch.float32) < kernel.bytes(wide, torch.float32)
    assert kernel.bytes(narrow, torch.float16) * 2 == kernel.bytes(narrow, torch.float32)
    assert 0 < kernel.flops(narrow) < kernel.flops(wide)
    assert kernel.size_means


@pytest.mark.parametrize(
    ("name", "size", "shape", "elements", "flops"),
    [
        # Twelve elements, read once and written once; four for a weight and four for a bias.
        ("square", 6, (6, 6), 24, 12),
        ("gelu", 6, (6, 6), 24, 108),
        ("softmax", 6, (4096, 6), 24, 60),
        ("layernorm", 6, (4096, 6), 32, 96),
        ("rmsnorm", 6, (4096, 6), 28, 48),
    ],
)
def test_counts_by_hand(name: str, size: int, shape: Shape, elements: int, flops: int) -> None:
    kernel = kernels.load(name)
    assert kernel.shape(size) == shape
    assert kernel.rows == (4096 if shape[0] == 4096 else None), (
        "rows that follow from the size are its own affair"
    )
    assert kernel.bytes((3, 4), torch.float32) == 4 * elements
    assert kernel.bytes((3, 4), torch.bfloat16) == 2 * elements
    assert kernel.flops((3, 4)) == flops


def imported(tree: ast.Module, *, at_import_only: bool) -> set[str]:
    """The modules that a source names in its imports; relative ones are absolute in this repository."""
    nodes = tree.body if at_import_only else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=str(path.relative_to(kernels.ROOT))) for path in kernels.ROOT.rglob("*.py")],
)
def test_imports(path: object) -> None:
    tree = ast.parse((kernels.ROOT / str(path)).read_text())
    assert not {name for name in imported(tree, at_import_only=False) if name.split(".")[0] == "pipeline"}
    if str(path).endswith("__init__.py"):
        # The worker says whether Triton interprets after it has loaded the kernel's contract.
        assert not {name for name in imported(tree, at_import_only=True) if "triton" in name}


def test_a_grid_is_never_larger_than_a_launch() -> None:
    assert launch_grid(2**31 - 1) == (2**31 - 1,)
    with pytest.raises(ValueError, match="2147483648"):
        launch_grid(2**31)


def test_kernels_are_compiled_for_columns_that_unroll() -> None:
    assert known_columns(1) == 1
    assert known_columns(32768) == 32768
    assert known_columns(32769) is None


def test_kernels_that_hold_rows_are_compiled_for_the_columns_of_few() -> None:
    assert known_columns_of_few(64, 781) == 781
    assert known_columns_of_few(65, 781) is None


def test_elements_are_taken_together_where_all_rows_begin_at_16_bytes() -> None:
    x = torch.zeros(4, 64)
    assert elements_together(x, 256) == 4
    assert elements_together(x.bfloat16(), 256) == 8
    assert elements_together(x.bfloat16(), 4) == 4
    assert elements_together(x[:, :37], 256) == 4, "the columns of a row don't matter"
    assert elements_together(x[:, 1:], 256) == 1
    assert elements_together(torch.zeros(4, 52), 256) == 1, "Triton knows of multiples of 16 elements alone"
