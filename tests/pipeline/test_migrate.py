"""Results of the first format become today's, and nothing that was timed is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline import ROOT
from pipeline.points import notation
from pipeline.store import evidence, results
from pipeline.store.record import Measurement

TIMED: dict[str, Any] = {
    "key": "016aba5517db6b1d",
    "kernel": "softmax",
    "provider": "triton_tile",
    "size": 781,
    "dtype": "bfloat16",
    "block_size": 1024,
    "num_warps": 4,
    "num_stages": None,
    "rows": 37,
    "status": "ok",
    "error": None,
    "shape": [37, 781],
    "max_abs_err": 1e-6,
    "max_rel_err": 1e-3,
    **{"timer": "graph", "cache": "cold", "median_us": 2.0, "p20_us": 1.9, "p80_us": 2.1, "min_us": 1.8},
    **{"rel_ci": 0.001, "overhead_us": 0.3, "n_samples": 3, "samples_us": [1.8, 2.0, 2.2]},
    **{"bytes": 115588, "flops": 144485, "gbps": 57.794, "tflops": 0.0722425, "bound": "memory"},
    **{"ceiling_fraction": 0.01, "sm_clock_mhz": 1980, "mem_clock_mhz": 3201, "temperature_c": 40},
    **{"power_w": 200.0, "throttle": None, "threads": None, "noise_floor": 0.004, "valid": True},
    **{"invalid_reason": None, "gpu": "nvidia-h200", "device": "cuda:0", "environment": "def7e40d2ca99251"},
    **{"source": "620c1cbce9436df5", "commit": "e54a0d4db7e4cde8f2d941fd4a45a60a2eda68a6", "dirty": False},
    **{"measured_at": "2026-11-22T07:34:00Z", "image": None, "base_image": None},
}

WITHOUT_TIME = dict.fromkeys(
    [name for name in TIMED if name.endswith("_us") or name in ("timer", "cache", "rel_ci", "n_samples")]
    + ["bytes", "flops", "gbps", "tflops", "bound", "ceiling_fraction", "valid", "sm_clock_mhz"]
    + ["mem_clock_mhz", "temperature_c", "power_w", "noise_floor", "max_abs_err", "max_rel_err"]
)

REFUSED = TIMED | WITHOUT_TIME | {"key": "0" * 16, "status": "unsupported", "error": "runs on a CPU only"}
FAILED = (
    TIMED | WITHOUT_TIME | {"key": "1" * 16, "size": 64, "status": "timeout", "error": "no answer in 120 s"}
)
GONE = TIMED | {"key": "2" * 16, "kernel": "no_longer"}

COUNTER: dict[str, Any] = {
    **{
        name: TIMED[name]
        for name in ("key", "kernel", "provider", "size", "dtype", "block_size", "num_warps")
    },
    **{"num_stages": None, "rows": 37, "role": "best", "status": "ok", "sentence": "memory limits it"},
    **{"environment": "def7e40d2ca99251", "function": "_softmax_tile", "registers": 34.0},
}


def planted(folder: Path, *rows: dict[str, Any]) -> Path:
    ledger = results.ledger_path(folder, "softmax", "nvidia-h200")
    ledger.parent.mkdir(parents=True)
    ledger.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"torn')
    timing = (
        "{timer: auto, cache: cold, stopping: confidence, target_rel_ci: 0.005, min_samples: 10, "
        "max_seconds: 0.1}"
    )
    ledger.with_suffix(".yaml").write_text(f"seed: 0\ntiming: {timing}\n")
    counters = results.counters_path(folder, "softmax", "nvidia-h200")
    counters.parent.mkdir(parents=True)
    counters.write_text(json.dumps(COUNTER) + "\n")
    return ledger


def migrate(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.migrate", f"input={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def read(folder: Path) -> list[Measurement]:
    sentences: list[str] = []
    rows = results.load(folder, sentences.append).measurements
    assert sentences == []
    return list(rows)


def test_what_was_timed_stays_and_refusals_go(tmp_path: Path) -> None:
    planted(tmp_path, TIMED, REFUSED, FAILED, GONE)
    done = migrate(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 rows migrated; 2 refusals and rows of kernels that are gone dropped")
    assert "1 timed points must be measured again" in done.stdout
    timed, failed = sorted(read(tmp_path), key=lambda row: row.outcome.status)
    assert timed.outcome.timing is not None
    assert timed.outcome.timing.samples_us == (1.8, 2.0, 2.2)
    assert dict(timed.point.parameters) == {"block_size": 1024, "num_warps": 4}
    assert dict(timed.point.problem) == {"rows": 37, "columns": 781, "dtype": "bfloat16"}
    assert notation.label(timed.point) == "triton_tile 1024x4w"
    assert timed.workload == "few_rows"
    assert timed.origin.commit == TIMED["commit"]
    assert (timed.parts.source, timed.parts.measurement) == ("", "0"), (
        "nothing is claimed of what was not recorded"
    )
    assert failed.outcome.status == "timeout"


def test_evidence_follows_its_measurement(tmp_path: Path) -> None:
    planted(tmp_path, TIMED)
    assert migrate(tmp_path).returncode == 0
    (row,) = read(tmp_path)
    (counted,) = evidence.load(tmp_path, pytest.fail).counters["softmax", "nvidia-h200"]
    assert (counted.key, counted.point) == (row.key, row.point)
    assert counted.registers == 34.0


def test_a_second_time_changes_nothing(tmp_path: Path) -> None:
    ledger = planted(tmp_path, TIMED)
    assert migrate(tmp_path).returncode == 0
    once = ledger.read_bytes()
    done = migrate(tmp_path)
    assert done.stdout.startswith("0 rows migrated"), done.stderr
    assert ledger.read_bytes() == once


def test_without_its_settings_a_ledger_is_left_alone(tmp_path: Path) -> None:
    ledger = planted(tmp_path, TIMED)
    ledger.with_suffix(".yaml").unlink()
    before = ledger.read_bytes()
    done = migrate(tmp_path)
    assert done.returncode == 2
    assert "must tell the timing and the seed" in done.stderr
    assert "Traceback" not in done.stderr
    assert ledger.read_bytes() == before
