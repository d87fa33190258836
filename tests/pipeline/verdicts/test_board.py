"""The ranking of kept verdicts, their rewards and their page."""

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline.judging.folder import GIVEN, SIGNED
from kernel_pipeline.machine import device
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.settings import TimingSettings
from pipeline.execution.session import Session
from pipeline.reporting import judged_page
from pipeline.verdicts import formats
from pipeline.verdicts.board import Board, BoardEntry, ranked
from pipeline.verdicts.judged import MOST_REWARD, Judged, Judgement, Speed, Verdict, WorkloadTimes
from tests.pipeline.test_judge import JUDGED


def judged(name: str, verdict: Verdict = "correct", times: float | None = None, **more: Any) -> Judged:
    speed = None
    if times is not None:
        speed = Speed(times=times, low=times * 0.9, high=times * 1.1, decided="faster")
    return Judged(submission=f"{name}.py", verdict=verdict, speed=speed, **more)


def entry(one: Judged, gpu: str = "cpu-x", n: int = 16) -> BoardEntry:
    return BoardEntry(
        key=one.submission,
        problem="problems/softmax.py",
        workloads=(Values({"n": n}),),
        gpu=gpu,
        isolation="isolated",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        judged=one,
    )


@pytest.mark.parametrize(
    ("one", "reward"),
    [
        (judged("fast", times=2.0), 1.8),
        (judged("fabulous", times=100.0), MOST_REWARD),
        (judged("untimed"), 0.0),
        (judged("cheats", "cheats", times=2.0), 0.0),
        (judged("wrong", "incorrect"), 0.0),
        (judged("busy", "can't be judged"), 0.0),
    ],
)
def test_only_a_correct_submission_with_a_time_gets_a_reward(one: Judged, reward: float) -> None:
    assert one.reward == pytest.approx(reward)


def test_the_last_verdict_on_each_submission_is_ranked_the_fastest_correct_one_first() -> None:
    every = [
        judged("a", "cheats"),
        judged("b", times=1.1),
        judged("c", "incorrect", reason="wrong"),
        judged("d", times=1.5),
        judged("e", "can't be judged"),
        judged("b", times=3.0),
        judged("f"),
    ]
    assert [one.judged.submission[0] for one in ranked(map(entry, every))] == [*"bdfeca"]


def test_a_board_has_a_section_for_each_problem_and_gpu_and_hides_no_markup() -> None:
    wrong = judged("<b>", "incorrect", reason="<script>alert()</script>")
    some = [entry(wrong), entry(judged("a", times=2.0)), entry(judged("a", times=3.0), gpu="nvidia-h200")]
    text = judged_page.of_board(some)
    assert re.findall(r"<section id=\"[^\"]*\"[^>]*data-gpu=\"([^\"]*)\"", text) == ["cpu-x", "nvidia-h200"]
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert text.index("2.00") < text.index("&lt;b&gt;") < text.index("3.00")
    assert not re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"", text), "the page needs no other file"


def test_a_page_has_the_times_at_each_workload_and_what_was_not_tried() -> None:
    speed = Speed(times=2.0, low=1.9, high=2.1, decided="faster")
    timed = tuple(
        WorkloadTimes(workload=Values({"n": n}), speed=speed, us=us, reference_us=2 * us, rounds=3)
        for n, us in ((16, 4.0), (32, 9.0))
    )
    found = Judgement(
        problem="problems/softmax.py",
        workloads=tuple(each.workload for each in timed),
        scale=1,
        gpu="cpu-x",
        command="judge",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        isolation="isolated",
        skipped={SIGNED: "it takes no negative numbers"},
        results=(judged("a", times=2.0, timed=timed, wrong_at="n=7: it fails"), judged("b", times=3.0)),
    )
    text = judged_page.of_judgement(found)
    assert "Not tried: alternating signs: it takes no negative numbers." in text
    assert text.count("It is right at the given sizes only: wrong at n=7: it fails.") == 1
    none = found.replace(skipped={**found.skipped, GIVEN: "it needs a GPU"})
    assert "Not tried" not in judged_page.of_judgement(none), "the verdicts say why nothing was tried"
    assert "softmax with 2 workloads on cpu-x" in text
    cells = re.findall(r"<t[hd](?: [^>]*)?>([^<]+)<", text)
    assert cells.index("6.00") < cells.index("n=16") < cells.index("4.00") < cells.index("n=32"), cells


@pytest.mark.parametrize("changed", ["task/reference.py", "task/task.yml", "submission.py", "n=8", ""])
def test_a_kept_verdict_counts_only_for_the_same_files_and_workloads(changed: str, tmp_path: Path) -> None:
    shutil.copytree(JUDGED / "rounds", tmp_path / "task")
    submission = tmp_path / "submission.py"
    submission.write_text("def custom_kernel(data): ...\n")
    session = Session(device.resolve("cpu"), TimingSettings(), 0, 1, tmp_path)

    def key(**pins: int) -> str:
        problem = formats.problem(tmp_path / "task")
        return Board(tmp_path / "board.jsonl", problem, problem.plan(pins, 1), session, []).key(submission)

    before = key()
    if changed.endswith((".py", ".yml")):
        with (tmp_path / changed).open("a") as file:
            file.write("# edited\n")
    assert (key(**({"rows": 8} if changed == "n=8" else {})) == before) is (not changed)
