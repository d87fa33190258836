"""What is true of the Numba providers beside what is true of all: where they run, what they refuse, and what
their compiler makes of them. Without a GPU they run in Numba's simulator."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernel_pipeline.machine.reaper import INTERPRETERS
from kernel_pipeline.records.point import Point
from kernel_pipeline.threads import Threads
from kernels.matmul import Problem
from kernels.rows import Matrix
from pipeline.inspection import programs
from tests.kernels.kernel_cases import EVERY_KERNEL, ON_GPU
from tests.processes import completed

pytest.importorskip("numba_cuda", reason="Numba is not installed: pip install '.[numba]'")

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
NUMBA = {
    loaded.name: provider
    for loaded in EVERY_KERNEL
    for provider in loaded.kernel.providers
    if provider.language == "numba"
}


def entry(kernel: str) -> Callable[..., torch.Tensor]:
    return loading.load(kernel).entry(NUMBA[kernel])


def test_the_kernels_of_the_first_lecture_have_one() -> None:
    assert {"vector_add", "square", "softmax", "matmul"} <= NUMBA.keys()
    assert all(provider.is_own and provider.devices == ("cuda",) for provider in NUMBA.values())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("tile", [16, 32])
def test_a_product_whose_dimensions_are_no_multiples_of_a_tile(tile: int, dtype: torch.dtype) -> None:
    a, b = (torch.randn(shape, device=DEVICE).to(dtype) for shape in ((17, 21), (21, 18)))
    exact = a.double() @ b.double()
    within = loading.load("matmul").kernel.tolerance(
        Problem(m=17, n=18, k=21, dtype=str(dtype).removeprefix("torch."))
    )
    for left, right in ((a, b), (a.mT.contiguous().mT, b.mT.contiguous().mT)):
        out = entry("matmul")(left, right, arithmetic="ieee", tile=tile)
        torch.testing.assert_close(out.double(), exact, rtol=within.rtol, atol=within.atol)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 256])
def test_softmax_of_rows_shorter_and_longer_than_a_block(threads: int) -> None:
    for columns in (5, 300):
        x = torch.randn(2, columns, device=DEVICE)
        out = entry("softmax")(x, threads=threads)
        torch.testing.assert_close(out.double(), x.double().softmax(1), rtol=2e-5, atol=2e-38)


def test_what_numba_can_not_take_is_said() -> None:
    bfloat16 = Matrix(rows=1, columns=1, dtype="bfloat16")
    sentence = "Numba takes float32 and float16, no bfloat16"
    assert NUMBA["softmax"].fits(bfloat16, Threads(), None) == sentence
    tf32 = Problem(m=1, n=1, k=1, dtype="float32", arithmetic="tf32")
    assert "tf32 needs tensor cores" in str(NUMBA["matmul"].fits(tf32, None, None))
    x = torch.ones(4, 4, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^Numba needs float32 or float16, got bfloat16$"):
        entry("square")(x, threads=32)
    with pytest.raises(ValueError, match=r"two vectors of one length, got shapes \(3,\) and \(4,\)"):
        entry("vector_add")(torch.ones(3, device=DEVICE), torch.ones(4, device=DEVICE), threads=32)


WITHOUT_SIMULATOR = """
import json
import torch
from kernels.square.numba import square
from kernel_pipeline.execution.instance import Instance
from kernel_pipeline.execution.launch_recorder import recorded
from types import SimpleNamespace
from numba.cuda.dispatcher import _Kernel

said = []
try:
    square(torch.ones(4), threads=32)
except ValueError as error:
    said.append(str(error))
_Kernel.launch = lambda self, args, griddim, blockdim, stream, sharedmem: said.append(args)
with recorded(SimpleNamespace(library=None, provider=SimpleNamespace(language="numba"))) as told:
    kernel = SimpleNamespace(py_func=square)
    _Kernel.launch(kernel, "arguments", (4, 2, 1), (128, 1, 1), None, 512)
_Kernel.launch(kernel, "later", (1, 1, 1), (1, 1, 1), None, 0)
print(json.dumps([said, [launch.to_dict() for launch in told()]]))
"""


def test_without_the_simulator_a_cpu_is_refused_and_launches_are_recorded() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in INTERPRETERS}
    done = completed(
        [sys.executable, "-c", WITHOUT_SIMULATOR],
        cwd=loading.ROOT.parent,
        env=environment | {"PYTHONPATH": f"{loading.ROOT.parent}:{environment.get('PYTHONPATH', '')}"},
    )
    assert done.returncode == 0, done.stderr
    said, (launch,) = json.loads(done.stdout)
    assert said == ["on a CPU Numba needs its simulator: set NUMBA_ENABLE_CUDASIM=1", "arguments", "later"]
    assert (launch["function"], launch["grid"], launch["block"]) == ("square", [4, 2, 1], [128, 1, 1])
    assert launch["shared_bytes"] == 512


def compiled(
    kernel: str, problem: dict[str, Any], parameters: dict[str, Any], sm: str
) -> programs.CompiledPoint:
    point = Point(kernel=kernel, provider="numba", problem=problem, parameters=parameters)
    (one,) = programs.compile_points(kernel, [(point, sm)])
    if one.error and "libnvvm" in one.error:
        pytest.skip(f"Numba's compiler is not here: {one.error}")
    return one


@pytest.mark.slow
@pytest.mark.xdist_group("compile")
@pytest.mark.parametrize(
    ("kernel", "problem", "parameters", "sm", "shared"),
    [
        ("square", {"rows": 64, "columns": 64, "dtype": "float32"}, {"threads": 256}, "100", 0),
        ("softmax", {"rows": 64, "columns": 64, "dtype": "float16"}, {"threads": 256}, "90", 1152),
        (
            "matmul",
            {"m": 64, "n": 64, "k": 64, "dtype": "float32", "arithmetic": "ieee"},
            {"tile": 32},
            "80",
            8192,
        ),
    ],
)
def test_it_compiles_on_any_host_without_spills_or_double_precision(
    kernel: str, problem: dict[str, Any], parameters: dict[str, Any], sm: str, shared: int
) -> None:
    one = compiled(kernel, problem, parameters, sm)
    assert one.error is None
    (program,) = one.programs
    assert program.threads == (parameters.get("threads") or parameters["tile"] ** 2)
    assert program.analysis.resources.shared + program.shared in (shared, shared + 1024)  # the system's own
    assert f".entry {program.analysis.symbol}(" in program.texts["ptx"]
    assert f"kernels/{kernel}/numba.py" in program.texts["ptx"]
    assert ".f64" not in program.texts["ptx"]
    opcodes = {instruction.opcode.partition(".")[0] for instruction in program.analysis.instructions}
    assert "LDG" in opcodes and "STG" in opcodes
    assert not opcodes & {"LDL", "STL", "DADD", "DMUL", "DFMA"}


AS_NUMPY_2_5 = """
import numpy
del numpy.row_stack
from pipeline.inspection import numba_code
from kernel_pipeline.records.point import Point

point = Point(
    kernel="vector_add",
    provider="numba",
    problem={"elements": 1000, "dtype": "float32"},
    parameters={"threads": 256},
)
(launch,) = numba_code.compile_point("vector_add", point, "90")
print(launch.name)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("compile")
def test_it_compiles_with_a_numpy_that_has_lost_a_name() -> None:
    done = completed(
        [sys.executable, "-c", AS_NUMPY_2_5],
        cwd=loading.ROOT.parent,
        env={name: value for name, value in os.environ.items() if name not in INTERPRETERS},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "_add"), done.stderr[-1000:]


def test_a_provider_of_another_package_is_not_simulated() -> None:
    assert NUMBA["square"].interpreted
    assert not NUMBA["square"].compiles_ahead
    assert not Provider("peer", "numba.py:f", package="somebody's").interpreted
