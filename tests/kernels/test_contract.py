"""Every kernel keeps the contract, whatever it computes."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import EPSILON, ITEM_BYTES, Provider
from kernel_pipeline.declared import Value
from kernel_pipeline.loading import Loaded
from kernel_pipeline.tensors import dtype_of, launch_grid
from kernels.rows import vector_width
from tests.kernels.kernel_cases import (
    CPU,
    EVERY_KERNEL,
    KERNELS,
    META,
    interpreted,
    problem_of,
    smoke,
    tolerances,
    words_of,
)
from tests.processes import completed

PROVIDERS = [
    pytest.param(loaded, provider, id=f"{loaded.name}-{provider.name}")
    for loaded in EVERY_KERNEL
    for provider in loaded.kernel.providers
]
WORDS = [
    pytest.param(loaded, *words.values, id=f"{loaded.name}-{words.id}")
    for loaded in EVERY_KERNEL
    for words in words_of(loaded)
]


@pytest.mark.parametrize("name", ["sofmax", "contract", "", ".."])
def test_an_unknown_name_raises(name: str) -> None:
    with pytest.raises((KeyError, FileNotFoundError)):
        loading.load(name)


@pytest.mark.parametrize("loaded", KERNELS)
def test_a_kernel_is_named_as_its_folder_and_its_providers_apart(loaded: Loaded) -> None:
    assert loaded is loading.load(loaded.name)
    assert loaded.folder == loading.ROOT / loaded.name
    assert loaded.summary
    names = [provider.name for provider in loaded.kernel.providers]
    assert len(set(names)) == len(names)
    assert loaded.kernel.provider(loaded.kernel.baseline).name == loaded.kernel.baseline
    with pytest.raises(KeyError):
        loaded.kernel.provider("nobody")


HEAVY = ("torch", "triton", "numpy", "pipeline")
DECLARE = """
import json, sys
from kernel_pipeline import loading
loaded = loading.load(sys.argv[1])
for provider in loaded.kernel.providers:
    provider.variables(), provider.is_installed
loaded.kernel.dimensions()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("loaded", KERNELS)
def test_a_declaration_imports_no_torch(loaded: Loaded) -> None:
    done = completed([sys.executable, "-c", DECLARE, loaded.name], cwd=loading.ROOT.parent)
    assert done.returncode == 0, done.stderr
    assert not set(HEAVY) & set(json.loads(done.stdout))


def imported(tree: ast.Module) -> set[str]:
    """The packages that a source names in its imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=str(path.relative_to(loading.ROOT))) for path in loading.ROOT.rglob("*.py")],
)
def test_kernels_know_nothing_of_the_pipeline(path: Path) -> None:
    assert "pipeline" not in imported(ast.parse(path.read_text()))


def python_names(path: Path, function: str) -> list[str]:
    """The arguments of a function at the top of a Python file, read without importing it; without the inputs
    that some problems do not have, which have a default."""
    (node,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    taken = node.args
    assert taken.vararg is None
    assert taken.kwarg is None
    first = [*taken.posonlyargs, *taken.args]
    optional = {one.arg for one in first[len(first) - len(taken.defaults) :]}
    return [one.arg for one in (*first, *taken.kwonlyargs) if one.arg not in optional]


def operator_names(path: Path, operator: str) -> list[str]:
    """The arguments of an operator that a C++ source defines."""
    (schema,) = re.findall(rf'm\.def\(\s*"{operator}\(([^)]*)\)', path.read_text())
    return [argument.split()[-1].partition("=")[0] for argument in schema.split(",")]


@pytest.mark.parametrize(("loaded", "provider"), PROVIDERS)
def test_an_entry_is_there_and_takes_the_inputs_and_its_parameters(
    loaded: Loaded, provider: Provider
) -> None:
    path = loaded.folder / provider.file
    assert path.is_file()
    names = (python_names if path.suffix == ".py" else operator_names)(path, provider.function)
    in_form, kernel, problem = loading.load(loaded.address(provider.name)), loaded.kernel, problem_of(loaded)
    module = loaded.module(kernel.reference)
    handed = filter(None, (kernel.workspaces, kernel.destination and "outputs"))
    given = in_form.given(problem, in_form.inputs(problem, META, 0))
    parts = [given, *(getattr(module, name)(problem) for name in handed)]
    by_name = {name for part in parts if isinstance(part, dict) for name in part}
    inputs = sum(len(part) for part in parts if not isinstance(part, dict))
    assert set(names[inputs:]) - by_name == {*kernel.arguments, *provider.variables()}
    assert len(names) == len(set(names))
    assert provider.extension is None or (loaded.folder / provider.extension).is_file()


@pytest.mark.parametrize(
    ("loaded", "provider"), [one for one in PROVIDERS if one.values[1].reference is not None]
)
def test_another_form_of_the_inputs_has_the_same_answer(loaded: Loaded, provider: Provider) -> None:
    """As far as the change of form rounds, which the tolerance allows for."""
    problem = interpreted(loaded, problem_of(loaded, 256))
    in_form = loading.load(loaded.address(provider.name))
    try:
        inputs = in_form.inputs(problem, CPU, 3)
    except RuntimeError as error:
        pytest.skip(f"this host can't make the form: {error}")
    expected = loaded.expected(problem, loaded.inputs(problem, CPU, 3))
    given = in_form.expected(problem, inputs)
    allowed = tolerances(loaded.kernel, problem, len(expected))
    for out, right, within in zip(given, expected, allowed, strict=True):
        torch.testing.assert_close(out, right, rtol=within.rtol, atol=within.atol)


@pytest.mark.parametrize("loaded", KERNELS)
def test_every_problem_of_smoke_can_be_made(loaded: Loaded) -> None:
    problems = list(smoke(loaded))
    assert problems
    for problem in problems:
        for name, dimension in loaded.kernel.dimensions().items():
            assert dimension.check(getattr(problem, name)) == getattr(problem, name)
        one = interpreted(loaded, problem)
        assert loaded.kernel.work(one).flops <= loaded.kernel.work(problem).flops


@pytest.mark.parametrize(("loaded", "words"), WORDS)
def test_inputs_are_seeded_never_zeros_and_without_data_alike(
    loaded: Loaded, words: dict[str, Value]
) -> None:
    problem = interpreted(loaded, problem_of(loaded, 64, **words))
    inputs = loaded.inputs(problem, CPU, 7)
    assert all(tensor.double().count_nonzero() > 0 for tensor in inputs)
    assert all(map(torch.equal, inputs, loaded.inputs(problem, CPU, 7)))
    assert not all(map(torch.equal, inputs, loaded.inputs(problem, CPU, 8)))
    without_data = loaded.inputs(problem, META, 0)
    like = [(tensor.shape, tensor.dtype, True) for tensor in inputs]
    assert [(tensor.shape, tensor.dtype, tensor.is_meta) for tensor in without_data] == like


@pytest.mark.parametrize(("loaded", "words"), WORDS)
def test_the_reference_gives_the_outputs_exactly(loaded: Loaded, words: dict[str, Value]) -> None:
    problem = interpreted(loaded, problem_of(loaded, 37, **words))
    expected = loaded.expected(problem, loaded.inputs(problem, CPU, 0))
    declared = loaded.returned(problem, expected)
    assert [tuple(tensor.shape) for tensor in expected] == [shape for shape, _ in declared]
    for tensor, (_, dtype) in zip(expected, declared, strict=True):
        assert tensor.dtype == torch.float64 or not dtype.is_floating_point
    for one in tolerances(loaded.kernel, problem, len(declared)):
        assert 0 <= one.rtol < 0.1
        assert one.atol >= 0
    assert len(tolerances(loaded.kernel, problem, len(declared))) == len(declared)


@pytest.mark.parametrize(("loaded", "words"), WORDS)
def test_the_least_work_reads_each_input_and_writes_each_output_once(
    loaded: Loaded, words: dict[str, Value]
) -> None:
    problem = problem_of(loaded, 261, **words)
    read = sum(tensor.numel() * tensor.itemsize for tensor in loaded.inputs(problem, META, 0))
    written = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in loaded.returned(problem, ()))
    assert loaded.kernel.work(problem).bytes == read + written


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
def test_counts_by_hand(name: str, size: int, shape: tuple[int, int], elements: int, flops: int) -> None:
    loaded = loading.load(name)
    assert problem_of(loaded, size).shape == shape
    for dtype in ("float32", "bfloat16"):
        work = loaded.kernel.work(loaded.kernel.problem(rows=3, columns=4, dtype=dtype))
        assert work.bytes == ITEM_BYTES[dtype] * elements
        assert work.operations == {"float32": flops}


@pytest.mark.parametrize("name", EPSILON)
def test_what_is_known_of_a_dtype_without_torch(name: str) -> None:
    # Not by torch.finfo, which says 0.125 of float8_e5m2fnuz: the next number above 1 tells.
    one = torch.ones(1).to(dtype_of(name))
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    assert (one.view(bits) + 1).view(one.dtype).double().item() - 1 == EPSILON[name]


def test_a_grid_is_never_larger_than_a_launch() -> None:
    assert launch_grid(2**31 - 1) == (2**31 - 1,)
    with pytest.raises(ValueError, match="2147483648"):
        launch_grid(2**31)


def test_elements_are_taken_together_where_all_rows_begin_at_16_bytes() -> None:
    x = torch.zeros(4, 64)
    assert vector_width(x, 256) == 4
    assert vector_width(x.bfloat16(), 256) == 8
    assert vector_width(x.bfloat16(), 4) == 4
    assert vector_width(x[:, :37], 256) == 4, "the columns of a row don't matter"
    assert vector_width(x[:, 1:], 256) == 1
    assert vector_width(torch.zeros(4, 52), 256) == 1, "Triton knows of multiples of 16 elements alone"
