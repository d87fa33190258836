"""Shares of a ceiling: all of one machine and arithmetic are of its newest ceiling, whatever rows hold."""

import pytest

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from pipeline.reporting.headlines import compute_ceiling, with_shares
from tests.factory import CPU, H100, H200, ceilings, final, grid, measurement


def test_the_compute_ceiling_is_that_of_the_works_arithmetic():
    known = ceilings(H200)
    square = {"m": 512, "n": 512, "k": 512}
    for words, name in (
        ({"dtype": "bfloat16", "arithmetic": "ieee"}, "bfloat16"),
        ({"dtype": "float32", "arithmetic": "ieee"}, "float32"),
        ({"dtype": "float32", "arithmetic": "tf32"}, "tf32"),
    ):
        problem = Values({**square, **words})
        assert compute_ceiling("matmul", problem, known) == pytest.approx(known.matmul_tflops[name])
    assert compute_ceiling("matmul", problem, None) is None
    assert compute_ceiling("matmul", problem, known.replace(matmul_tflops={"float32": 1.0})) is None
    assert compute_ceiling("matmul", Values({"size": 512}), known) is None, "of an earlier declaration"
    assert compute_ceiling("of_old", Values({"n": 512}), known) is None


def known() -> dict[str, Ceilings]:
    """Ceilings that were measured after the rows: a tenth above those that the rows know."""
    found = {}
    for gpu in (H100, H200):
        one = ceilings(gpu)
        faster = {name: 1.1 * rate for name, rate in one.matmul_tflops.items()}
        found[gpu] = one.replace(copy_gbps=1.1 * one.copy_gbps, matmul_tflops=faster)
    return found


def rows() -> list:
    made = grid(kernels=("softmax", "matmul"), gpus=(H100, H200), dtypes=("float32", "bfloat16"))
    made += [measurement("softmax", size=64, status="runtime_error"), measurement("softmax", gpu=CPU)]
    return made


def test_a_share_is_of_the_ceiling_of_today():
    before, after = rows(), with_shares(rows(), known())
    assert {row.rate.bound for row in after if row.rate} == {"memory", "compute", None}
    for old, new in zip(before, after, strict=True):
        if old.rate is None:
            assert new == old
        elif old.origin.gpu == CPU:
            assert (new.rate.bound, new.rate.ceiling_fraction) == (None, None), "it has no ceilings"
        else:
            assert new.rate.bound == old.rate.bound
            assert new.rate.ceiling_fraction == pytest.approx(old.rate.ceiling_fraction / 1.1, rel=1e-4)


def test_a_sustained_time_has_the_ceiling_of_a_burst():
    row = measurement("matmul", "torch", 4096, "bfloat16")
    burst = final(row, 200.0)
    lower = burst.rate.replace(ceiling_fraction=1.07)
    sustained = burst.replace(power="sustained", rate=lower)
    one, other = with_shares([burst, sustained], known())
    assert one.rate == other.rate and one.rate.bound == "compute"


def test_a_kernel_that_is_gone_keeps_the_share_of_a_copy_alone():
    gone = measurement("gone", size=4096)
    (found,) = with_shares([gone], known())
    assert found.rate.ceiling_fraction == pytest.approx(found.rate.gbps / known()[H200].copy_gbps, rel=1e-4)
    computing = gone.replace(rate=gone.rate.replace(bound="compute"))
    (found,) = with_shares([computing], known())
    assert (found.rate.bound, found.rate.ceiling_fraction) == (None, None), "in which arithmetic?"
