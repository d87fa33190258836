"""Ceilings are read where they are known, measured where they are not, and again where that is asked for."""

from pathlib import Path

import pytest

from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.ceilings import Ceilings, Rates
from pipeline.execution.sidecar_files import known_or_measured, measured
from pipeline.store import results

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
    path.write_text(known.replace(**changed).to_json().decode())


def test_what_is_known_is_read_and_what_was_measured_elsewhere_is_measured_again(tmp_path: Path) -> None:
    path, worker = tmp_path / "ceilings.json", Worker(is_disturbed=False)
    write(path)
    assert found(worker, path).copy_gbps == 3.0 and worker.asked == 0
    write(path, environment="another")
    again = found(worker, path)
    assert (again.copy_gbps, again.noise, worker.asked) == (8.0, {}, 1)
    assert found(worker, path) == again and worker.asked == 1


def test_what_others_disturbed_stays_for_sweeps_and_is_measured_again_when_asked_for(tmp_path: Path) -> None:
    """A sweep that changed the file would make the stage that wrote it due, and the rows before it another
    kind."""
    here, there, worker = tmp_path / "here.json", tmp_path / "there.json", Worker(is_disturbed=False)
    write(here, is_disturbed=True)
    before = here.read_bytes()
    assert found(worker, here).is_disturbed and worker.asked == 0 and here.read_bytes() == before
    write(there, copy_gbps=5.0)
    either = known_or_measured(worker, CPU, [here, there], here)  # type: ignore[arg-type]
    assert (either.copy_gbps, either.is_disturbed) == (5.0, False), "better than what was disturbed"
    again = measured(worker, CPU, here)  # type: ignore[arg-type]
    assert (again.copy_gbps, again.is_disturbed, again.noise) == (8.0, False, {"memory": 0.01})
    assert found(worker, here) == again and worker.asked == 1


def test_what_others_disturb_is_shown_in_no_report(tmp_path: Path) -> None:
    path = results.ceilings_path(tmp_path, CPU.gpu)
    path.parent.mkdir(parents=True)
    assert found(Worker(is_disturbed=True), path).is_disturbed
    assert results.read(Ceilings, path).is_disturbed
    assert results.load(tmp_path, pytest.fail).ceilings == {}
