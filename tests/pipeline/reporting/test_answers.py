"""The first screen of the report: four questions, each answered in at most six lines."""

import re
from pathlib import Path

import pytest

from kernel_pipeline.files import write_atomically
from pipeline import report
from pipeline.command.options import ReportConfig
from pipeline.reporting.answers import MOST_LINES
from pipeline.store import comparisons
from pipeline.store.comparisons import ComparedSide, Comparison, ComparisonRow
from tests.factory import H100, H200, MEASURED_AT, final, measurement, write_finals, write_results

GPU, BEATEN, SLOWED, DOUBTED = (
    "Which GPU is faster?",
    "Who beats us?",
    "Did commits slow anything?",
    "What is not to be trusted?",
)


def answered(folder: Path) -> dict[str, list[str]]:
    """The lines of each question on the page, which are in the other page, too."""
    output = folder.parent / "reports"
    report.run(ReportConfig(input=folder, output=output, device="cpu"))
    text = (output / "report.md").read_text()
    page = (output / "report.html").read_text()
    found = {}
    for question, answer in re.findall(r"^### (.*\?)\n\n((?:- .*\n)+)", text, re.MULTILINE):
        found[question] = [line.removeprefix("- ") for line in answer.splitlines()]
        assert f"<h3>{question}</h3>" in page
        assert len(found[question]) <= MOST_LINES
    assert list(found) == [GPU, BEATEN, SLOWED, DOUBTED]
    return found


def compared(folder: Path, a: str, b: str, *verdicts: str) -> None:
    """A comparison of two commits, one point a verdict."""
    rows = [
        ComparisonRow(
            **{"problem": f"n={place}", "a": "x", "b": "x", "a_us": 1.0, "b_us": 1.0, "rounds": 2},
            **{"ratio": 1.0, "low": 1.0, "high": 1.0, "verdict": verdict},
        )
        for place, verdict in enumerate(verdicts)
    ]
    sides = {name: ComparedSide(name="HEAD", commit=commit * 20) for name, commit in (("a", a), ("b", b))}
    one = Comparison(
        **{"kernel": "softmax", "gpu": H200, "run": "r", "at": MEASURED_AT, **sides},
        **{"by": 0.02, "rows": tuple(rows), "command": "compare"},
    )
    path = comparisons.path(folder, "softmax", H200, f"{a}-{b}").with_suffix(".json")
    write_atomically(path, one.to_json())


def test_the_first_screen_answers_from_two_gpus_finals_comparisons_and_doubts(tmp_path: Path) -> None:
    rows = [
        measurement("softmax", provider, 4096, gpu=gpu, median_us=us * factor)
        for provider, us in (("cuda", 100.0), ("torch", 80.0))
        for gpu, factor in ((H100, 1.0), (H200, 0.5))
    ]
    hot = {"valid": False, "throttle": "sw_power_cap"}
    rows.append(measurement("softmax", "manual", 4096, gpu=H200, median_us=90.0, **hot))  # type: ignore[arg-type]
    folder = write_results(tmp_path / "results", rows)
    ours = measurement("softmax", "cuda", 1024, gpu=H200, median_us=30.0)
    once = final(ours, 30.0).replace(rounds_us=(30.0,))
    write_finals(folder, [once])
    compared(folder, "aa", "bb", "slower", "same", "same")
    compared(folder, "cc", "cc", "slower")  # a tree with itself, which tells of the tool
    found = answered(folder)
    (gpus,) = found[GPU]
    assert gpus.startswith(
        "Bound by memory, 1 problem: NVIDIA H200 takes 0.50 of NVIDIA H100 80GB HBM3's time"
    )
    assert found[BEATEN][0].startswith("Another is faster by more than 1 % at 2 of ")
    assert found[BEATEN][1].startswith("softmax on NVIDIA H")
    assert any("the worst: torch takes 0.80 of our time at " in line for line in found[BEATEN][1:])
    assert found[SLOWED] == [
        f"softmax, aaaaaaa to bbbbbbb, on NVIDIA H200, {MEASURED_AT:%Y-%m-%d}: "
        "1 slower, 0 faster of 3 points."
    ]
    answer = " ".join(found[DOUBTED])
    assert "1 time: throttled, so an upper bound." in answer
    assert re.search(r"All \d+ times: of an earlier source", answer)
    assert "1 time: finals of one round, which decides nothing." in answer


def test_what_there_is_no_answer_to_is_said_with_the_command(tmp_path: Path) -> None:
    rows = [
        measurement("softmax", name, 4096, median_us=us) for name, us in (("cuda", 50.0), ("torch", 80.0))
    ]
    found = answered(write_results(tmp_path / "results", rows))
    assert found[GPU] == ["Only NVIDIA H200 has results."]
    assert found[BEATEN] == ["Nobody by more than 1 %, at 1 problem with others."]
    (line,) = found[SLOWED]
    assert line.startswith("Not compared: python -m pipeline.compare kernel=NAME a=COMMIT")


@pytest.mark.parametrize("count", [5, 9])
def test_more_than_there_is_room_for_is_counted(tmp_path: Path, count: int) -> None:
    folder = write_results(tmp_path / "results", [measurement("softmax", "torch", 4096)])
    for place in range(count):
        compared(folder, f"a{place}", f"b{place}", "same")
    answer = answered(folder)[SLOWED]
    assert len(answer) == min(count, MOST_LINES)
    assert (answer[-1] == f"And {count - MOST_LINES + 1} more lines.") is (count > MOST_LINES)
