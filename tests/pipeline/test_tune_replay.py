"""``python -m pipeline.tune_replay``: the rule against a ledger whose regrets are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline import tune_replay
from pipeline.command.options import TuneReplayConfig
from pipeline.command.run import run_stage
from tests import factory


def replay(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["tune_replay", f"input={folder}", "kernel=softmax", *words])
    with pytest.raises(SystemExit) as ended:
        run_stage("tune_replay", TuneReplayConfig, tune_replay.run)
    return ended.value.code


def test_the_regrets_are_those_of_a_ledger_whose_rows_are_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for columns in (256, 300, 512, 600, 1024):
        wide = 10.0 if columns != 1024 else 12.0
        rows += [
            factory.measurement("softmax", "torch", columns, median_us=20.0),
            factory.measurement("softmax", "cuda", columns, median_us=wide, block_size=4096, num_warps=8),
            factory.measurement(
                "softmax",
                "cuda",
                columns,
                median_us=10.0 if columns == 1024 else 15.0,
                block_size=1024,
                num_warps=4,
            ),
        ]
    factory.write_results(tmp_path, rows)
    assert replay(tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines() if line.strip().startswith("within")]
    found = {" ".join(line[1:-7]): line[-7:] for line in lines}
    # Left out, 1024 columns get the wide one, which takes 20 % longer there.
    assert found["rule"] == ["5", "0.0", "%", "12.0", "%", "20.0", "%"]
    assert found["baseline"] == ["5", "100.0", "%", "100.0", "%", "100.0", "%"]
    assert found["best default"] == ["5", "50.0", "%", "50.0", "%", "50.0", "%"]
    assert "rule where it is trusted" not in found
    assert replay(tmp_path, monkeypatch, "l2_mib=0") == 0
    assert "within" not in capsys.readouterr().out


def test_without_a_ledger_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(tmp_path, monkeypatch) == 2
    assert "has no ledger of a kernel that was asked for" in capsys.readouterr().err
