"""The real command measures rows again and reports which times it reproduced."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.records.measurement import Measurement, Outcome, State
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import verify
from pipeline.command.options import VerifyConfig
from pipeline.execution import session
from pipeline.keys.identity import Identity
from pipeline.points import catalog
from pipeline.store import results
from pipeline.verify import SampledRow, sample
from tests import factory
from tests.factory import H200
from tests.planted.tree import Tree, cpu_tree
from tests.project import python

GPU = device.Device(kind="cuda", name="NVIDIA H200", index=0, uuid="GPU-planted")


def candidates(rows: list[Measurement]) -> list[SampledRow]:
    entries = {name: catalog.find(name) for name in {row.point.kernel for row in rows}}
    return [SampledRow(row, entries[row.point.kernel], TimingSettings(), 0) for row in rows]


def test_a_sample_is_spread_over_kernels_providers_and_short_and_long_times() -> None:
    sizes = (64, 256, 1024, 4096, 8192, 16384)
    many = factory.grid(kernels=["softmax"], providers=["torch", "triton_online"], sizes=sizes)
    few = factory.grid(kernels=["gelu"], providers=["torch"], sizes=(256,))
    fresh = candidates([*many, *few])
    drawn = sample(fresh, 13, seed=0)
    assert len({id(one) for one in drawn}) == 13
    counts = Counter((one.row.point.kernel, one.row.point.provider) for one in drawn)
    assert counts == {("softmax", "torch"): 6, ("softmax", "triton_online"): 6, ("gelu", "torch"): 1}
    for provider in ("torch", "triton_online"):
        of_one = [one.us for one in drawn if one.row.point.provider == provider and one.entry.name != "gelu"]
        times = sorted(one.us for one in fresh if one.row.point.provider == provider)
        assert min(of_one) < times[len(times) // 3] and max(of_one) > times[-len(times) // 3]
    assert sample(fresh, 13, seed=0) == drawn
    assert sample(fresh, 13, seed=1) != drawn
    assert len(sample(fresh, 1000, seed=0)) == len(fresh)
    assert {one.entry.name for one in sample(fresh, 2, seed=0)} == {"softmax", "gelu"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with five rows of an H200, of which one has another source and one is marked as not
    to be trusted."""
    monkeypatch.setattr(verify.device, "resolve", lambda wanted: GPU)
    for module in (verify, session):
        monkeypatch.setattr(module, "fingerprint", lambda chosen: factory.environment(H200))
    rows = factory.grid(kernels=["softmax"], providers=["torch"], sizes=(256, 512, 1024, 2048, 4096))
    identity = Identity(
        catalog.find("softmax").loaded, factory.environment(H200), TimingSettings(min_samples=7), 3
    )
    rows = [factory.fresh(row, identity) for row in rows]
    old = rows[0].parts.replace(source="0" * 16)
    rows[0] = rows[0].replace(parts=old, key=old.key)
    assert rows[1].outcome.state is not None
    marked = rows[1].outcome.state.replace(valid=False, invalid_reason="it was hot")
    rows[1] = rows[1].replace(outcome=rows[1].outcome.replace(state=marked))
    factory.write_results(tmp_path, rows)
    results.config_path(tmp_path, "softmax", H200).write_text("timing: {min_samples: 7}\nseed: 3\n")
    return tmp_path


STOPPED = -1.0
"""Stands for Ctrl-C in the list of factors."""


class Planted:
    """A fake worker. Each point takes the next factor times its row's time, has the given outcome, or is
    stopped."""

    factors: tuple[float | Outcome, ...] = ()
    folder: Path
    settings: tuple[TimingSettings, int]

    def __init__(
        self,
        chosen: object,
        timing: TimingSettings,
        seed: int,
        timeout_s: float,
        root: Path,
        heeds_load: bool = False,
    ) -> None:
        Planted.settings = timing, seed
        self.rows = {
            row.point: row for row in results.load(self.folder, pytest.fail, local=False).measurements
        }
        self.left = iter(self.factors)
        self.canary = None

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, where: str, point: Point) -> Outcome:
        factor = next(self.left)
        if isinstance(factor, Outcome):
            return factor
        if factor == STOPPED:
            raise KeyboardInterrupt
        outcome = self.rows[point].outcome
        assert outcome.timing is not None
        timing = factory.timing(outcome.timing.median_us * factor)
        return outcome.replace(timing=timing)


Run = Callable[..., int]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command with such a worker and returns its exit status."""

    def run(*factors: float | Outcome, writes: bool = False, **options: object) -> int:
        planted = type("PlantedHere", (Planted,), {"factors": factors, "folder": folder})
        monkeypatch.setattr(session, "Supervisor", planted)
        given = {
            **{"kernel": ["softmax"], "device": "cuda", "provider": None, "points": 60, "sample_seed": 0},
            **{"margin": 0.02, "share": 0.9, "note": False, "input": folder, "point_timeout_s": 1.0},
        }
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        try:
            verify.run(VerifyConfig.model_validate(given | {"wait_s": None} | options))
        except SystemExit as ended:
            return int(str(ended.code))
        finally:
            left = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            assert (left == before) is not writes, "nothing is written to results that is not asked for"
        return 0

    return run


def test_times_that_come_out_the_same_are_counted_and_old_rows_are_said(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(1.019, 0.981, 1.0) == 0
    out = capsys.readouterr().out
    assert "reproduced: 3 of 3 within 2 %, 1 in the 90 % interval of their row; " in out
    assert "it is not known which GPU of this model measured them." in out
    assert "3 of 3 fresh rows of nvidia-h200 were measured again" in out
    old = "1 row is old: the source of softmax/torch changed; 1 row is marked as not to be trusted"
    assert f"{old}, and could not be verified." in out
    assert "not reproduced" not in out


def test_what_was_not_reproduced_is_listed_and_too_much_of_it_is_exit_code_1(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Outcome(status="timeout", error="no answer in 1 s")
    assert run(1.5, failed, 1.0) == 1
    out = capsys.readouterr().out
    assert "reproduced: 1 of 3 within 2 %, " in out
    assert "That is less than share=0.9 of the sample." in out
    (line,) = [line for line in out.splitlines() if " 1.50 " in line]
    assert line.split()[0] == "softmax" and "timeout" not in line
    assert "timeout: no answer in 1 s" in out
    assert run(1.5, failed, 1.0, share=0.3) == 0
    assert run(1.5, 1.4, 1.3, margin=0.6) == 0


def test_stopped_it_says_what_it_found_until_then(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(1.5, 1.0, STOPPED, note=True)
    out = capsys.readouterr().out
    assert "2 of 3 fresh rows of nvidia-h200 were measured again" in out
    assert "reproduced: 1 of 2 within 2 %, " in out
    with pytest.raises(KeyboardInterrupt):
        run(STOPPED)
    assert "reproduced" not in capsys.readouterr().out


def test_a_time_now_that_is_not_to_be_trusted_reproduces_nothing(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = Outcome(
        status="ok",
        max_abs_err=0.0,
        timing=factory.timing(5.0),
        state=State(valid=False, invalid_reason="it was busy"),
    )
    assert run(busy, 1.0, 1.0) == 1
    out = capsys.readouterr().out
    assert "reproduced: 2 of 3 within 2 %, " in out
    assert "it was busy" in out
    assert "1 new time is not to be trusted: run the command again when the machine is quiet." in out


def test_rows_are_measured_by_the_settings_that_they_were_measured_by(run: Run, folder: Path) -> None:
    assert run(1.0, points=1) == 0
    assert Planted.settings == (TimingSettings(min_samples=7), 3)
    results.config_path(folder, "softmax", H200).unlink()
    with pytest.raises(UserError, match=r"nvidia-h200\.yaml does not have the settings of .*\.jsonl;"):
        run()


def command(tree: Tree, *words: str, results: str = "outputs") -> subprocess.CompletedProcess[str]:
    return python(
        "-m",
        "pipeline.verify",
        "kernel=quick",
        "device=cpu",
        f"input={results}",
        *words,
        cwd=tree.root,
        TMPDIR=str(tree.temporary),
        COLUMNS="200",
    )


@pytest.mark.slow
def test_a_cpus_rows_are_measured_again_and_old_ones_are_not(tmp_path: Path) -> None:
    tree = cpu_tree(tmp_path, "quick")
    assert tree.sweep("kernel=quick").returncode == 0
    before = {path: path.read_bytes() for path in (tree.root / "outputs").rglob("*") if path.is_file()}
    trusted = sum(bool(row.outcome.state and row.outcome.state.valid) for row in tree.rows("quick"))
    done = command(tree, "points=3", "share=0")
    if trusted:  # on a busy machine there may be none
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert f"{min(3, trusted)} of {trusted} fresh rows of cpu-" in done.stdout
        assert f" of {min(3, trusted)} within 2 %, " in done.stdout
    (tree.root / "kernels/quick/sums.py").write_text("def twice(x):\n    return 2.0 * x\n")
    (tree.root / "kernels/quick/torch.py").write_text("def mul(x):\n    return 2.0 * x\n")
    done = command(tree)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no row of cpu-")
    assert "4 rows are old: the source of quick/" in done.stderr
    assert "Run make repro to measure them again.\n" in done.stderr
    left = {path: path.read_bytes() for path in (tree.root / "outputs").rglob("*") if path.is_file()}
    assert left == before, "nothing is written to results"
    elsewhere = command(tree, results="nowhere")
    assert elsewhere.returncode == 2
    assert "nowhere has no times of cpu-" in elsewhere.stderr
    assert elsewhere.stderr.endswith(" outputs has some: write input=outputs.\n")


def test_what_another_gpu_adds_is_noted_with_the_ceilings_and_is_in_every_interval_then(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = results.ceilings_path(folder, H200)
    path.unlink(missing_ok=True)
    again = {"input": folder, "share": 0.0}
    with pytest.raises(UserError, match=r"pipeline\.benchmarks ceilings first, then note=true"):
        run(1.0, 1.0, 1.0, note=True, **again)
    path.parent.mkdir(exist_ok=True)
    path.write_text(factory.ceilings(H200).to_json().decode())
    monkeypatch.setattr(verify.spread, "FEWEST", 3)
    run(1.04, 1.05, 0.97, note=True, writes=True, **again)
    assert "3 in the 90 % interval" not in capsys.readouterr().out
    run(1.04, 1.045, 0.97, **again)
    assert "0 of 3 within 2 %, 3 in the 90 % interval of their row" in capsys.readouterr().out
