"""A tracker's password is hidden from kernels' code, and masked in records of that code's output."""

import gzip
import io
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernel_pipeline.execution import supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.records import credentials
from kernel_pipeline.toolchain.ninja_build import CompileError, LibraryBuild, compile_all
from pipeline import ROOT, repro
from pipeline.store import ledger
from pipeline.store.comparisons import ComparedSide, Comparison, ComparisonRow
from pipeline.store.evidence import CounterRow
from tests import factory
from tests.planted import outside
from tests.processes import completed

PASSWORD = 'correct horse/"battery"'
TELLS = r"""import os

import torch

words = open("/proc/self/environ").read().split("\0")
told = next(word for word in words if word.startswith("MLFLOW_TRACKING_PASSWORD="))


def double(x):
    if x.dtype == torch.float64:
        raise RuntimeError(f"{told}, {os.environ.get('MLFLOW_TRACKING_PASSWORD')}")
    with torch.profiler.record_function(told):
        return x * 2
"""


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:another-secret@mlflow.example")


@pytest.mark.usefixtures("password")
def test_a_password_is_kept_from_providers_and_from_what_is_written() -> None:
    told = supervisor._environment(device.resolve("cpu"))
    assert not set(credentials.TRACKER) & told.keys()
    assert not any(PASSWORD in value or "another-secret" in value for value in told.values())
    row = factory.measurement(status="runtime_error", error=f"KeyError: {PASSWORD!r}, another-secret")
    assert "KeyError: '...', ..." in ledger.encode(row).decode()
    row = row.replace(outcome=factory.measurement().outcome)
    assert "..." not in ledger.encode(row).decode()


@pytest.mark.usefixtures("password")
def test_a_comparison_and_evidence_are_without_it() -> None:
    row = ComparisonRow(
        **{"problem": "n=1", "a": "x", "b": "x", "a_us": 1.0, "b_us": 1.0, "rounds": 2},
        **{"ratio": 1.0, "low": 1.0, "high": 1.0, "verdict": "same"},
        changed=f"{'x' * 3990}{PASSWORD}",
    )
    side = ComparedSide(name="HEAD", commit=None)
    comparison = Comparison(
        **{"kernel": "softmax", "gpu": "nvidia-h200", "run": "r", "at": datetime.now(UTC), "a": side},
        **{"b": side, "by": 0.02, "rows": (row,)},
        command=f"python -m pipeline.compare tracking.uri=http://me:{PASSWORD}@host",
    )
    text = comparison.to_json().decode()
    assert "corr" not in text, "nor the part that a limit of length would leave"
    counted = CounterRow(
        **{"kernel": "softmax", "role": "ours", "status": "error", "environment": "e"},
        sentence=f"not counted: {PASSWORD}",
        reason=PASSWORD,
    )
    assert (counted.sentence, counted.reason) == ("not counted: ...", "...")


@pytest.mark.usefixtures("password")
def test_a_build_s_logs_and_the_log_of_make_repro_are_without_it(tmp_path: Path) -> None:
    def job(name: str, link: str) -> LibraryBuild:
        library = tmp_path / "build" / f"{name}.so"
        compile_ = f'echo "$MLFLOW_TRACKING_PASSWORD"; touch {library.with_suffix(".o")}; echo "x:" > '
        words = ("sh", "-c", compile_ + str(library.with_suffix(".d")))
        return LibraryBuild(tmp_path / "source", library, words, ("sh", "-c", link))

    (tmp_path / "source").touch()
    right = job("right", f"touch {tmp_path}/build/right.so")
    compile_all([right], tmp_path / "build", tmp_path)
    assert right.file(".log").read_text() == "...\n"
    with pytest.raises(CompileError) as failed:
        compile_all([job("wrong", 'echo "$MLFLOW_TRACKING_PASSWORD"; false')], tmp_path / "build", tmp_path)
    assert str(failed.value).endswith("does not link:\n...")
    log = io.StringIO()
    repro.pass_through([f"Running stage 'sweep':\n{PASSWORD}\n"], log)
    assert log.getvalue() == "Running stage 'sweep':\n...\n"


@pytest.mark.slow
def test_a_provider_that_runs_in_the_command_itself_is_not_told_and_its_words_are_masked(
    tmp_path: Path,
) -> None:
    made = outside.write(tmp_path)
    (made / "whole.py").write_text(TELLS)
    places = {name: tmp_path / "written" / name for name in ("output", "artifacts", "tensorboard")}
    command = [sys.executable, "-m", "pipeline.profile", f"kernel={made}", "provider=whole", "n=64"]
    command.append("dtype=[float32,float64]")
    command += ["device=cpu", "preset=smoke", *(f"{name}={path}" for name, path in places.items())]
    done = completed(
        command, cwd=ROOT, env=os.environ | {"MLFLOW_TRACKING_PASSWORD": "correct horse battery"}
    )
    assert done.stdout.startswith("Profiling double"), done.stderr
    written = {path: path.read_bytes() for path in (tmp_path / "written").rglob("*") if path.is_file()}
    texts = [gzip.decompress(text) if path.suffix == ".gz" else text for path, text in written.items()]
    assert sum(b"MLFLOW_TRACKING_PASSWORD=..." in text for text in texts) == 4, "rows, table, two traces"
    assert any(b"MLFLOW_TRACKING_PASSWORD=..., None" in text for text in texts)
    said = [done.stdout.encode(), done.stderr.encode(), *texts]
    assert not [text for text in said if b"correct horse" in text]
