"""A board of twenty submissions, killed in the middle and continued."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT
from tests.pipeline.test_judge import JUDGED

COPIES = {
    "correct": {"right": 5},
    "incorrect": {"zeros": 3, "drops_nan": 2, "overflows": 3, "input": 2},
    "cheats": {"caches": 3, "skips": 2},
}
"""The number of copies of each submission to the softmax, by its verdict."""

LEAST = 6
"""The first board is killed as soon as it has kept this many verdicts."""


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_board_continues_where_it_was_killed_and_judges_nothing_twice(tmp_path: Path) -> None:
    by, kept = tmp_path / "by", tmp_path / "judge" / "softmax" / "board.jsonl"
    by.mkdir()
    verdicts = {}
    for verdict, copies in COPIES.items():
        for name, count in copies.items():
            text = (JUDGED / "softmax_by" / f"{name}.py").read_text()
            for number in range(count):
                (by / f"{name}_{number}.py").write_text(f"{text}\n\nNUMBER = {number}\n")
                verdicts[f"{name}_{number}"] = verdict
    problem = (f"kernel={JUDGED / 'softmax.py'}", "batch_size=16", "dim=256")
    brief = ("rounds=0", "preset=smoke", "device=cpu", f"output={tmp_path}", "format=json")
    command = [sys.executable, "-m", "pipeline.judge", "board", str(by), *problem, *brief]
    own = {"TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def begun() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | own, stdout=pipe, stderr=pipe, text=True)

    first = begun()
    while len(entries(kept)) < LEAST:
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = entries(kept)
    assert LEAST <= len(before) < len(verdicts)

    said, messages = begun().communicate()
    assert f"{len(verdicts) - len(before)} of {len(verdicts)} submissions are judged now." in messages
    found = [json.loads(line)["judged"] for line in said.splitlines()]
    assert {Path(one["submission"]).stem: one["verdict"] for one in found} == verdicts
    times = Counter(one["key"] for one in entries(kept))
    assert (len(times), set(times.values())) == (len(verdicts), {1})
    assert entries(kept)[: len(before)] == before
