"""Ceilings are read where they are known, and measured where they are not, or where others disturbed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.execution.calibration import known_or_measured
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.store import results
from pipeline.store.ceilings import Ceilings, Rates

CPU = fingerprint(device.cpu())


class Worker:
    """Measures a rate, and counts how often it is asked to."""

    def __init__(self, is_disturbed: bool) -> None:
        self.is_disturbed = is_disturbed
        self.asked = 0

    def rates(self) -> tuple[Rates, bool]:
        self.asked += 1
        return Rates(copy_gbps=8.0, matmul_tflops={"float32": 1.0}), self.is_disturbed


def found(worker: Worker, path: Path) -> Ceilings:
    return known_or_measured(worker, CPU, [path], path)  # type: ignore[arg-type]  # rates is all that is asked


def write(path: Path, **changed: object) -> None:
    known = Ceilings(
        gpu=CPU.gpu,
        environment=CPU.of_device,
        copy_gbps=3.0,
        matmul_tflops={"float32": 2.0},
        noise={"memory": 0.01},
    )
    path.write_text(known.model_copy(update=changed).model_dump_json())


def test_what_is_known_is_read(tmp_path: Path) -> None:
    path, worker = tmp_path / "ceilings.json", Worker(is_disturbed=False)
    write(path)
    assert found(worker, path).copy_gbps == 3.0 and worker.asked == 0


@pytest.mark.parametrize("changed", [{"is_disturbed": True}, {"environment": "another"}])
def test_what_was_disturbed_or_measured_elsewhere_is_measured_again(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    path, worker = tmp_path / "ceilings.json", Worker(is_disturbed=False)
    write(path, **changed)
    again = found(worker, path)
    assert (again.copy_gbps, again.is_disturbed, worker.asked) == (8.0, False, 1)
    assert again.noise == ({} if "environment" in changed else {"memory": 0.01}), "of the same environment"
    assert found(worker, path) == again and worker.asked == 1


def test_what_others_disturb_is_kept_for_no_sweep_and_shown_in_no_report(tmp_path: Path) -> None:
    path = results.ceilings_path(tmp_path, CPU.gpu)
    path.parent.mkdir(parents=True)
    worker = Worker(is_disturbed=True)
    assert found(worker, path).is_disturbed and results.read(Ceilings, path).is_disturbed
    assert results.load(tmp_path, pytest.fail).ceilings == {}
    assert found(worker, path).is_disturbed and worker.asked == 2
