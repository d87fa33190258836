"""Submissions judged on a GPU, with times and memcheck.

``tests/gpu/test_cheats.py`` sweeps all cheats of a GPU, by the same supervisor. A CPU judges each format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pipeline.test_judge import JUDGED, judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="streams, events and CUDA graphs need a GPU"),
]


@pytest.mark.alone
def test_a_right_submission_has_a_time(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "softmax.py", "right", device="cuda")
    results = found["results"]
    assert results["right"]["verdict"] == "correct", results["right"]["reason"]
    right = results["right"]
    assert 0 < right["speed"]["low"] <= right["speed"]["times"] <= right["speed"]["high"]
    (times,) = right["timed"]
    assert 0 < times["host_us"] < 1e4 and 0 < times["reference_host_us"] < 1e4
    assert 0 < times["own_us"] < 1e4 and 0 < times["reference_own_us"] < 1e4
    assert (code, right["is_repeatable"], right["memcheck"]) == (0, True, "no error")


@pytest.mark.long
def test_memcheck_finds_an_access_that_changes_no_answer(tmp_path: Path) -> None:
    _, found = judge(
        tmp_path, JUDGED / "positive.py", "triton_relu", "beyond", device="cuda", n=4000, rounds=0
    )
    clean, beyond = (found["results"][name] for name in ("triton_relu", "beyond"))
    assert (clean["verdict"], clean["memcheck"]) == ("correct", "no error"), clean
    assert (beyond["verdict"], beyond["memcheck"].startswith("Invalid")) == ("incorrect", True), beyond
    assert beyond["reason"].startswith("memcheck: Invalid __global__ read")
