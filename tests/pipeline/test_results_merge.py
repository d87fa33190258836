"""Merging adds the results of other clones: complete, checked, and with the same outcome when repeated."""

import json
import os
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.measurement import Measurement
from pipeline import results as command
from pipeline.command.options import ResultsConfig
from pipeline.command.run import run_stage
from pipeline.command.words import positional
from pipeline.store import ledger, results, runs
from pipeline.store.evidence import ProfileRow
from pipeline.store.rows import encode
from tests import factory
from tests.commands import exit_code
from tests.factory import H100, H200
from tests.processes import completed

ROOT = Path(__file__).parents[2]
LATER = factory.MEASURED_AT + timedelta(hours=1)


def merged(source: Path, output: Path, *, write: bool = True) -> None:
    command.run(
        ResultsConfig(
            action="merge",
            source=source,
            output=output,
            kernel="all",
            gpu=None,
            parts=("source",),
            write=write,
        )
    )


def files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, except locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def rows(folder: Path, gpu: str = H200) -> list[Measurement]:
    return ledger.read_rows(results.ledger_path(folder, "softmax", gpu), pytest.fail)


def profile(row: Measurement, sentence: str) -> ProfileRow:
    return ProfileRow(
        key=row.key, kernel="softmax", point=row.point, status="ok", sentence=sentence, environment="e"
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return factory.write_results(tmp_path / "here", factory.grid(sizes=(256, 1024)))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """Return the results of another clone: later measurements of some points, more points, another GPU,
    finals and records."""
    made = factory.grid(sizes=(1024, 4096), started=LATER, gpus=(H200, H100))
    folder = factory.write_results(tmp_path / "there", made)
    timed = [row for row in made if row.origin.gpu == H200]
    factory.write_finals(folder, [factory.final(timed[0], 12.0)])
    json_lines.write(results.profile_path(folder, "softmax", H200), [profile(timed[0], "theirs")])
    factory.write_held_out(folder, timed[0], 2.0)
    factory.write_record(folder, timed[:2], "20261121T130000Z-aaaaaa")
    text = "timing: {timer: auto}\nseed: 0\n"
    for gpu in (H200, H100):
        results.config_path(folder, "softmax", gpu).write_text(text)
    return folder


def test_the_newer_row_of_a_point_counts_and_nothing_else_is_lost(here: Path, there: Path) -> None:
    mine, theirs = rows(here), rows(there)
    merged(there, here)
    expected = {row.slot: row for row in mine} | {row.slot: row for row in theirs}
    found = rows(here)
    assert {row.slot: row for row in found} == expected and len(found) == len(expected)
    assert rows(here, H100) == rows(there, H100), "another GPU's ledger is new"
    assert set(files(there)) <= set(files(here))
    record = "runs/20261121T130000Z-aaaaaa.jsonl"
    assert files(here)[record] == files(there)[record]
    assert results.load(here, pytest.fail, local=False).gpus == [H100, H200]


def test_newer_ceilings_keep_the_noise_that_comparisons_found(here: Path, there: Path) -> None:
    def noted(folder: Path, **noise: float) -> dict[str, Any]:
        path = results.ceilings_path(folder, H200)
        known = json.loads(path.read_text()) | {"noise": noise}
        path.write_text(json.dumps(known))
        return known

    noted(here, launch=0.004, compute=0.001)
    theirs = noted(there, launch=0.003)
    merged(there, here)
    found = json.loads(results.ceilings_path(here, H200).read_text())
    assert found == theirs | {"noise": {"launch": 0.003, "compute": 0.001}}


def test_a_second_merge_changes_nothing_and_the_other_way_round_gives_the_same_rows(
    here: Path, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(there, tmp_path / "other")
    merged(here, other)
    merged(there, here)
    before = files(here)
    capsys.readouterr()
    merged(there, here)
    assert files(here) == before
    assert capsys.readouterr().out.splitlines()[-1] == f"{here} already has all results of {there}."
    assert rows(other) == rows(here)


def test_the_folder_above_the_results_is_named_as_such(here: Path, there: Path) -> None:
    """Not as a folder whose results are all here."""
    clone = there.parent / "clone"
    shutil.copytree(there, clone / "results")
    with pytest.raises(UserError, match=f"holds no results of the pipeline; write merge {clone}/results"):
        merged(clone, here)


def test_without_write_it_says_what_it_would_do_and_does_nothing(
    here: Path, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here.parent)
    merged(there, here, write=False)
    assert files(here.parent) == before
    out = capsys.readouterr().out
    assert (
        "5 new, 5 newer than ours, 0 the same; rows differ: 5 by another measurement of the same key." in out
    )
    assert "would be taken. Write write=true to take them." in out.splitlines()[-1]


def test_conflicts_are_said_and_ours_stay_where_no_time_decides(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = rows(here)
    at = {"measured_at": mine[0].origin.measured_at}
    of = dict(mine[0].point.problem)
    twin = factory.measurement(
        "softmax", mine[0].point.provider, int(of["columns"]), source="a" * 16, median_us=9.0, **at
    )
    older = factory.measurement(
        "softmax", "torch", 1024, source="b" * 16, measured_at=factory.MEASURED_AT - timedelta(days=1)
    )
    elsewhere = factory.write_results(tmp_path / "elsewhere", [twin, older])
    for folder, word in ((here, "ours"), (elsewhere, "theirs")):
        json_lines.write(results.profile_path(folder, "softmax", H200), [profile(mine[0], word)])
    merged(elsewhere, here)
    out = capsys.readouterr().out
    assert "1 older than ours, which stay, 1 contradict ours, which stay, 0 the same" in out
    assert "rows differ: 2 by source." in out
    assert "1 contradict ours, which stay, 0 the same; rows differ: 1 by content." in out
    assert rows(here) == mine


def test_the_machine_is_described_as_the_newer_rows_found_it(here: Path, there: Path) -> None:
    path, other = (results.environment_path(folder, H200) for folder in (here, there))
    told = json.loads(other.read_text()) | {"driver": "999.0"}
    other.write_text(json.dumps(told))
    merged(there, here)
    assert json.loads(path.read_text())["driver"] == "999.0"
    path.write_text(json.dumps(told | {"driver": "1000.0"}))
    merged(there, here)
    assert json.loads(path.read_text())["driver"] == "1000.0", "theirs are no newer by now"


def test_lines_that_are_no_whole_rows_are_left_out_and_ours_stay(
    here: Path, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = (results.ledger_path(folder, "softmax", H200) for folder in (here, there))
    whole = theirs.read_bytes().splitlines()
    first = json.loads(whole[0])
    spoilt: list[dict[str, Any]] = [
        first | {"key": "0" * 16},
        first | {"unknown": 1},
        {**first, "point": {**first["point"], "provider": "quack"}},
    ]
    other = factory.measurement("softmax", gpu="nvidia-other", run="20261121T120000Z-0f0f0f")
    factory.write_provenance(theirs, [other])
    lines = [*(json.dumps(one).encode() for one in spoilt), encode(other).strip()]
    theirs.write_bytes(b"\n".join([*lines, *whole[1:], whole[0][:100]]))
    mine.write_bytes(mine.read_bytes() + b'{"of": "a later version"}\n')
    merged(there, here)
    out = capsys.readouterr().out
    assert f"{theirs}:1 is not a complete row of this version, or its digests are wrong; skipped." in out
    assert f"{theirs}:4 belongs to another kernel or machine than the file; skipped." in out
    assert f"{mine}: 5 new, 4 newer than ours, 5 lines skipped" in out
    assert mine.read_bytes().endswith(b'{"of": "a later version"}\n'), "what is here is not thrown away"
    keys = {row.point.provider for row in ledger.read_rows(mine, lambda sentence: None)}
    assert "quack" not in keys


def test_no_link_is_followed_and_odd_names_are_left_out(
    here: Path, there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers = there / "timings"
    secret = tmp_path / "secret"
    shutil.copytree(ledgers / "softmax", secret)
    (ledgers / "linked").symlink_to(secret)
    (ledgers / "softmax" / "nvidia-linked.jsonl").symlink_to(ledgers / "softmax" / f"{H200}.jsonl")
    # This link leads to a valid ledger in the same folder.
    hidden = (ledgers / "softmax" / f"{H100}.jsonl").rename(there / "hidden")
    (ledgers / "softmax" / f"{H100}.jsonl").symlink_to(hidden)
    (ledgers / "softmax" / "..odd\x1b[31m.jsonl").write_bytes(b"")
    (ledgers / "softmax" / "nvidia-folder.jsonl").mkdir()
    os.mkfifo(ledgers / "softmax" / "nvidia-pipe.jsonl")
    (there / "environment" / "nvidia-code.json").write_text('{"gpu": "nvidia-code", "!!python/name": 1}')
    config = results.config_path(there, "softmax", H200)
    config.write_text("timing: !!python/object/apply:os.system ['touch /tmp/never']\nseed: 0\n")
    merged(there, here)
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out and "is not named after a kernel and a machine" in out
    for name in ("linked", "nvidia-linked", "nvidia-folder", "nvidia-pipe", "nvidia-code"):
        assert name in out, f"{name} is said"
        assert not any(name in one for one in files(here))
    assert f"timings/softmax/{H100}.jsonl" not in files(here)
    assert f"{config} does not hold the settings of a sweep; skipped." in out
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(here / "timings" / "softmax")
    (here / "timings" / "softmax").symlink_to(outside)
    with pytest.raises(UserError, match="is a link that leads out of"):
        merged(there, here)
    assert list(outside.iterdir()) == []


def test_a_cpus_results_stay_on_its_host(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    of_cpu = factory.grid(gpus=(factory.CPU,))
    factory.write_results(there, of_cpu)
    run = "20261121T140000Z-bbbbbb"
    factory.write_record(there, of_cpu[:1], run)
    here = factory.write_results(tmp_path / "results", factory.grid())
    merged(there, here)
    out = capsys.readouterr().out
    for path in (results.ledger_path(there, "softmax", factory.CPU), there / f"runs/{run}.jsonl"):
        assert f"{path} is from a CPU, whose results stay on its host; skipped." in out
    assert [path.stem for path in runs.folder_in(here).iterdir()] == ["20261121T130000Z-aaaaaa"]


KILLED = """
import os, signal, sys
from pathlib import Path
from kernel_pipeline import files
from pipeline.store import clone
from pipeline.keys.identity import settings_beside
from kernel_pipeline.toolchain.resources import BuildReport
left = int(sys.argv[3])
replace = Path.replace
def counted(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = counted
clone.Merge(Path(sys.argv[1]), Path(sys.argv[2]), True, BuildReport, settings_beside).all()
"""
"""A program that merges and is killed after it has replaced the given number of files."""


def test_a_merge_that_was_killed_is_completed_by_the_same_command(
    here: Path, there: Path, tmp_path: Path
) -> None:
    whole = shutil.copytree(here, tmp_path / "whole")
    merged(there, whole)
    for left in (0, 2, 5, 8):
        killed = shutil.copytree(here, tmp_path / f"killed{left}")
        command = [sys.executable, "-c", KILLED, str(there), str(killed), str(left)]
        done = completed(command, cwd=ROOT)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert {row.slot for row in rows(here)} <= {row.slot for row in rows(killed)}
        merged(there, killed)
        for path in killed.rglob(".*"):
            if path.suffix != ".lock":
                path.unlink()  # a temporary file of the killed merge
        assert files(killed) == files(whole), f"killed before file {left}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [],
            "write python -m pipeline.results best kernel=NAME, python -m pipeline.results merge FOLDER, or "
            "python -m pipeline.results prune.",
        ),
        (["best"], "kernel is missing: write kernel=NAME with one of "),
        (["prune", "wirte=true"], "unknown option 'wirte'. Did you mean 'write'?"),
        (
            ["prune", "kernel=softmax", "columns=64"],
            "columns: only python -m pipeline.results best takes dimensions of a kernel; "
            "leave this option out.",
        ),
        (
            ["merge"],
            "source is missing: write python -m pipeline.results merge FOLDER with the results of another "
            "clone.",
        ),
        (["merge", "nowhere"], "source=nowhere is not a folder with results."),
        (
            ["merge", "results", "output=results"],
            "source=results and output=results are the same folder; name another clone's folder.",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    given = positional(words, "action", "source")
    code = exit_code(run_stage, "results", ResultsConfig, command.run, *given)
    said = capsys.readouterr().err
    assert code == 2 and said.startswith(f"error: {sentence}") and said.count("\n") == 1


def test_records_that_differ_are_not_replaced(here: Path, there: Path, capsys: Any) -> None:
    record = runs.folder_in(here) / "20261121T130000Z-aaaaaa.jsonl"
    factory.write_record(here, factory.grid(sizes=(256,))[:1], record.stem)
    before = record.read_bytes()
    merged(there, here)
    assert record.read_bytes() == before
    assert f"{record}: differs; ours stays" in capsys.readouterr().out
