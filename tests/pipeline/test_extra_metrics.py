"""The time to prepare weights and the memory of a call, from the command to the table and to MLflow."""

import re
from pathlib import Path

import pytest

from pipeline.reporting import lines
from pipeline.tracking import metrics
from tests.planted.tree import cpu_tree


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_shows_and_publishes_what_the_kernel_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tree = cpu_tree(tmp_path, "linear", "dropout")
    shown = {
        "linear": tree.sweep("kernel=linear", "provider=[torch,transposed]"),
        "dropout": tree.sweep("kernel=dropout", "provider=[torch,by_parts]"),
    }
    assert all(done.returncode == 0 for done in shown.values()), shown
    heads = {
        kernel: next(line for line in done.stdout.splitlines() if line.startswith("kernel "))
        for kernel, done in shown.items()
    }
    assert heads["linear"].endswith("prepare ms") and "peak MiB" not in heads["linear"]
    assert heads["dropout"].endswith("peak MiB") and "prepare ms" not in heads["dropout"]
    assert "host us" not in heads["dropout"], "a CPU has no host time beside the time"
    for row in tree.rows("dropout"):
        assert row.outcome.peak_mib is not None
        assert re.search(rf"{row.point.provider} .* {row.outcome.peak_mib:.2g}", shown["dropout"].stdout)

    looked = tree.sweep("kernel=linear", "provider=[transposed,keeps]", "debug=true")
    assert re.search(r"transposed.*\bright\b", looked.stdout), looked

    published = {
        one.point.provider: {value.key for value in metrics.values(one)}
        for one in lines.place([*tree.rows("linear"), *tree.rows("dropout")[:1]])
    }
    assert "prepare_ms" in published["transposed"] and "prepare_ms" not in published["torch"]
    assert "peak_mib" in published["by_parts"] and "peak_mib" not in published["transposed"]
