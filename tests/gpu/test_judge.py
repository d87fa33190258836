"""Cheats that only a GPU allows, as submissions in each format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pipeline.test_judge_cheats import Wrap, in_each_format, judged

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="streams, events and CUDA graphs need a GPU"),
]

CHEATS = {
    "torch_gpu": ("nothing_in_a_graph", "patches_elapsed_time", "patches_replay"),
    "triton_skips": ("fingerprint_in_a_graph", "third_in_a_graph"),
}
"""The other cheats of a GPU may be honest: a stream that is joined is timed."""


@in_each_format
def test_no_cheat_of_a_gpu_is_correct(wrap: Wrap, tmp_path: Path) -> None:
    assert judged(wrap, tmp_path, CHEATS, device="cuda") == {}
