"""What is particular to sparse weights: which are kept, and that matmul_sparse multiplies what comes."""

import dataclasses
from typing import Any

import pytest
import torch

from kernel_pipeline import loading
from kernels.matmul_sparse.reference import dense
from kernels.matmul_sparse.reference import reference as product
from kernels.sparsify import Problem
from tests.kernels.kernel_cases import Case, cases

SPARSIFY = loading.load("sparsify")
CPU = torch.device("cpu")
CASES = cases(lambda case: case.loaded is SPARSIFY and not case.provider.compiled)


def test_by_hand() -> None:
    w = torch.tensor([[1.0, -3.0, 2.0, 0.5, 0.0, 0.0, 0.0, 0.0, 2.0, -2.0, 2.0, 2.0]])
    (pruned,) = SPARSIFY.module("reference.py").reference(w, "prune")
    assert pruned.tolist() == [[0, -3, 2, 0, 0, 0, 0, 0, 2, -2, 0, 0]]
    values, metadata = SPARSIFY.module("reference.py").reference(w, "compress")
    assert values[0, :6].tolist() == [-3, 2, 0, 0, 2, -2]
    # Four bits each: the places 1 and 2, 0 and 1, 0 and 1.
    assert int(metadata[0, 0, 0]) & 0xFFF == 0x449


def run(case: Case, w: torch.Tensor, step: str) -> Any:
    case.load()
    parameters = {} if case.provider.parameters is None else dataclasses.asdict(case.provider.parameters())
    return case.loaded.entry(case.provider)(w, step=step, **parameters)


@pytest.mark.parametrize("case", CASES)
def test_equal_neighbours_keep_the_first(case: Case) -> None:
    generator = torch.Generator().manual_seed(2)
    w = torch.randint(-2, 3, (32, 128), generator=generator).to(torch.bfloat16).to(case.device)
    for step in ("prune", "compress", "transpose"):
        made = run(case, w, step)
        right = SPARSIFY.module("reference.py").reference(w, step)
        for out, expected in zip(made if isinstance(made, tuple) else (made,), right, strict=True):
            assert torch.equal(out.double(), expected.double())


@pytest.mark.parametrize("case", CASES)
def test_what_is_compressed_is_what_is_multiplied(case: Case) -> None:
    (w,) = SPARSIFY.inputs(Problem(n=48, k=192), case.device, 0)
    x = torch.randn(8, 192, dtype=torch.float64, device=case.device)
    pruned = run(case, w, "prune")
    values, metadata = run(case, w, "compress")
    assert torch.equal(dense(values, metadata), pruned)
    torch.testing.assert_close(product(x, values, metadata), x @ pruned.double().t())

    values, metadata = run(case, w, "transpose")
    turned = run(case, w.t().contiguous(), "prune")
    assert torch.equal(dense(values, metadata)[:, :48], turned)


def test_work_counts_what_is_read_and_written() -> None:
    for step, moved in (("prune", 2.0), ("compress", 1 + 9 / 16), ("transpose", 1 + 9 / 16)):
        work = SPARSIFY.kernel.work(Problem(n=4096, k=8192, step=step))
        assert work.bytes == 4096 * 8192 * 2 * moved


@pytest.mark.parametrize("step", ["prune", "compress", "transpose"])
def test_what_is_right_stays_so_when_an_output_s_memory_is_poisoned_with_its_opposite(step: str) -> None:
    """As a judge does it, in place after a conversion to the output's dtype."""
    problem = Problem(n=48, k=192, step=step)
    (w,) = SPARSIFY.inputs(problem, CPU, 0)
    right = SPARSIFY.expected(problem, (w,))
    before = [x.clone() for x in right]
    for reference, (shape, dtype) in zip(right, SPARSIFY.outputs(problem), strict=True):
        poison = reference.reshape(shape).to(dtype)
        poison.neg_()
    assert all(map(torch.equal, right, before))
