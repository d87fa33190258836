"""Backward passes of norms: sums over the rows of many programs, and launches that do not fit."""

import pytest
import torch
import triton

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernels import norm_gradients, sums_over_rows
from kernels.row_gradients import Persistent, persistent_fits, tolerances
from kernels.rows import Matrix
from tests.kernels.kernel_cases import ON_GPU, Case, cases

NAMES = ("rmsnorm_backward", "layernorm_backward")
CASES = cases(lambda case: case.loaded.name in NAMES and case.provider.language == "triton")
PERSISTENT = [one for one in CASES if "triton_persistent" in str(one.id)]


def launch(case: Case, **wanted: int) -> dict[str, int]:
    return {name: wanted.get(name, one.default) for name, one in case.provider.variables().items()}


@pytest.mark.parametrize(
    ("rows", "columns", "programs"),
    [
        (45, 37, 40),  # more programs than are added at a time; some take two rows
        (50, 5, 3),  # programs take many rows, the last fewer
        (3, 130, 132),  # fewer rows than programs
        (1, 1, 1),
        (20, 300, 8),  # in passes: three blocks of columns, two parts of the rows
        (270, 3, 40),  # in passes: more parts than are added at a time
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_no_rows_sum_is_left_out(
    case: Case, rows: int, columns: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (norm_gradients, sums_over_rows):
        monkeypatch.setattr(module, "persistent_programs", lambda x, each: programs)
    problem = Matrix(rows=rows, columns=columns)
    inputs = case.inputs(problem)
    parameters = launch(case, block_size=32)
    once = case.verify(problem, inputs, parameters)
    assert all(map(torch.equal, once, case.call(problem, inputs, parameters))), "the order of a sum changed"


@pytest.mark.parametrize("case", CASES)
def test_large_numbers_that_are_close_to_each_other(case: Case) -> None:
    """Of layernorm: their mean is not rounded like their sum."""
    if case.loaded.name == "rmsnorm_backward":
        pytest.skip("it subtracts no mean")
    problem = Matrix(rows=4, columns=300)
    d_out, x, weight = case.inputs(problem)
    x = 4096 + (x * 64).round() / 64
    outputs = case.call(problem, (d_out, x, weight), launch(case, block_size=64))
    case.check(outputs, case.loaded.expected(problem, (d_out, x, weight)), problem)


@pytest.mark.parametrize("case", CASES)
def test_without_rows_sums_are_zero(case: Case) -> None:
    empty = torch.empty(0, 5, device=case.device)
    d_x, *sums = case.loaded.entry(case.provider)(empty, empty, empty.new_ones(5), **launch(case))
    assert d_x.shape == (0, 5)
    assert sums and all(torch.equal(one, torch.zeros_like(one)) for one in sums)


@pytest.mark.parametrize("case", CASES)
def test_inputs_that_do_not_fit_are_refused(case: Case) -> None:
    d_out, x, weight = case.inputs(Matrix(rows=3, columns=7))
    entry, name = case.loaded.entry(case.provider), case.loaded.name
    for inputs, sentence in (
        ((d_out[:, 1:], x, weight), "needs a d_out of shape"),
        ((d_out.half(), x, weight), "needs a d_out of shape"),
        ((d_out, x, weight[1:]), "needs a weight of shape"),
        ((d_out[0], x[0], weight), "needs rows and columns"),
        ((d_out[:, :0], x[:, :0], weight[:0]), "needs at least one column"),
    ):
        with pytest.raises(ValueError, match=f"^{name} {sentence}"):
            entry(*inputs, **launch(case))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_registers_do_not_hold_is_refused(name: str) -> None:
    loaded = loading.load(name)
    provider = loaded.kernel.provider("triton_persistent")
    inputs = loaded.inputs(Matrix(rows=1, columns=16385), torch.device("meta"), 0)
    with pytest.raises(ValueError, match="one program holds a row and its sums: 16385 columns > 16384"):
        loaded.entry(provider)(*inputs, block_size=32768, num_warps=8, num_stages=1, per_sm=1)


@pytest.mark.parametrize(
    ("columns", "dtype", "sums", "reason"),
    [
        (8192, "float32", 2, None),
        (16384, "float32", 1, None),
        (16384, "bfloat16", 2, None),
        (16384, "float32", 2, "too much for the registers: 128 numbers per thread > 96"),
        (16385, "bfloat16", 1, "one program holds a row and its sums: 16385 columns > 16384"),
    ],
)
def test_a_row_that_registers_do_not_hold_does_not_fit(
    columns: int, dtype: str, sums: int, reason: str | None
) -> None:
    launch = Persistent(block_size=triton.next_power_of_2(columns), num_warps=16, per_sm=1)
    assert persistent_fits(Matrix(columns=columns, dtype=dtype), launch, None, sums) == reason


@pytest.mark.parametrize("columns", [12289, 16384])
@pytest.mark.parametrize("case", PERSISTENT)
def test_rows_of_which_a_program_keeps_the_sums_and_reads_inputs_twice(case: Case, columns: int) -> None:
    problem = Matrix(rows=3, columns=columns, dtype="float32")
    case.verify(problem, case.inputs(problem), launch(case, block_size=16384, num_warps=16, per_sm=1))


def test_stages_that_shared_memory_does_not_hold_do_not_fit() -> None:
    small = Gpu(capability=(8, 9), multiprocessors=142, shared_memory=101376, l2_cache=96 << 20)
    problem = Matrix(columns=4096)
    for stages, reason in (
        (2, None),
        (3, "too much for the shared memory: 2 x 66560 bytes in 3 stages > 101376"),
    ):
        assert persistent_fits(problem, Persistent(num_stages=stages), small, sums=1) == reason
        assert persistent_fits(problem, Persistent(num_stages=stages), None, sums=1) is None


def test_rows_that_are_read_twice_are_not_copied_ahead() -> None:
    launch = Persistent(block_size=16384, num_warps=16, num_stages=2, per_sm=1)
    reason = persistent_fits(Matrix(columns=8193, dtype="bfloat16"), launch, None, sums=1)
    assert reason == "rows of more than 8192 columns are read twice, and num_stages > 1 copies both ahead"


def test_a_tolerance_is_wide_where_rows_are_close_to_zero_alone() -> None:
    (narrow, _), (wide, sums) = (tolerances(Matrix(columns=n), 1, 1e3) for n in (15, 16))
    assert (narrow.atol, wide.atol) == (4e-3, 2e-5)
    assert sums.atol == pytest.approx(64e-5)


@pytest.mark.skipif(not ON_GPU, reason="many rows take the interpreter minutes")
@pytest.mark.parametrize("case", CASES)
def test_as_many_rows_as_in_training(case: Case) -> None:
    problem = Matrix(rows=16384, columns=1823, dtype="bfloat16")
    case.verify(problem, case.inputs(problem), case.configuration(problem))


def test_rows_of_softmax_begin_as_those_of_a_contiguous_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's vectors are at the same places of all three matrices."""
    loaded = loading.load("softmax_backward")
    entry = loaded.entry(loaded.kernel.provider("cuda"))
    formula = loaded.module("torch.py").formula
    copied = []

    def gradient(d_out: torch.Tensor, out: torch.Tensor, *launch: int) -> torch.Tensor:
        assert launch == (4096, 16)
        copied.append((d_out is not given, out is not values))
        for x in (d_out, out):
            assert x.data_ptr() % 16 == 0
            assert len(x) == 1 or (x.stride(0) - x.shape[1]) * x.itemsize % 16 == 0
        made: torch.Tensor = formula(d_out, out)
        return made

    monkeypatch.setattr(torch.ops.softmax_backward, "cuda", gradient, raising=False)
    wide = torch.randn(3, 784, dtype=torch.bfloat16)
    for given, is_copied in (
        (wide[:, :768], False),
        (wide[:, 8:776], False),
        (wide[:, 1:769], True),
        (wide[:, :777], True),
        (wide[:1, :777], False),
        (wide.view(-1)[: 3 * 777].view(3, 777), False),
        (wide.view(-1)[3 : 3 + 3 * 777].view(3, 777), True),
    ):
        values = torch.rand(given.shape).to(torch.bfloat16)
        assert torch.equal(entry(given, values, block_size=4096, num_warps=16), formula(given, values))
        assert copied.pop() == (is_copied, False), given.shape
    wider = torch.ones(1, 262145)
    with pytest.raises(ValueError, match="a cluster holds a row: 262145 columns > 262144"):
        entry(wider, wider, block_size=4096, num_warps=16)
