"""Problems that nobody tuned: they are drawn from what a kernel's YAML lists, measured by the real command,
and summed up without hiding a loss."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.device import Device
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline.command.option_groups import TimingConfig
from pipeline.command.options import HeldoutConfig
from pipeline.execution import session
from pipeline.execution.session import Session
from pipeline.heldout import Stage
from pipeline.points import catalog
from pipeline.points.catalog import Span
from pipeline.points.drawn import MOST, draw
from pipeline.points.plan import Target
from pipeline.store.held_out import HeldOut, HeldOutProblem, Other, summary, worst
from pipeline.store.turns import Turn
from pipeline.verdicts.drawn_problems import Drawn, _others, judge
from pipeline.verdicts.rounds import Candidate, Match, Side
from tests import factory
from tests.project import python

H200 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=50 << 20)

DRAWN = [name for name in catalog.names() if catalog.find(name).config.drawn]


def other(provider: str, ratio: float, verdict: str = "same") -> Other:
    """Return another provider whose time is ``ratio`` times the called configuration's, 10 us."""
    interval = {"low": ratio, "high": ratio}
    return Other.from_dict(
        {"provider": provider, "us": 10 * ratio, "ratio": ratio, "verdict": verdict, **interval}
    )


def problem(provider: str, *others: Other) -> HeldOutProblem:
    values = Values({"rows": 3, "columns": 777, "dtype": "float32"})
    return HeldOutProblem(
        problem=values, called=provider, provider=provider, how="guessed", us=10.0, rounds=3, others=others
    )


@pytest.mark.parametrize("name", DRAWN)
def test_problems_lie_within_the_yaml_and_a_larger_count_adds_some(name: str) -> None:
    entry = catalog.find(name)
    found = draw(entry, "cuda", 20261130, 40)
    assert draw(entry, "cuda", 20261130, 15) == found[:15]
    assert draw(entry, "cuda", 20261129, 40) != found
    for one in found:
        work = entry.loaded.kernel.work(one)
        most_bytes, most_flops = MOST["cuda"]
        assert work.bytes <= most_bytes and work.flops <= most_flops
        for dimension, listed in entry.config.drawn.items():
            value = getattr(one, dimension)
            if isinstance(listed, Span):
                assert listed.least <= value <= listed.most
            else:
                assert value in listed


def test_a_kernel_without_what_to_draw_and_too_many_problems_are_sentences() -> None:
    with pytest.raises(UserError, match="drawn is missing: list the values of each dimension there"):
        draw(catalog.find("sparsify"), "cuda", 1, 1)
    with pytest.raises(UserError, match="drawn gives fewer than 100000 problems"):
        draw(catalog.find("matmul_int4"), "cpu", 1, 100000)


@pytest.mark.parametrize(("target", "is_there"), [(Target("cpu", None), True), (Target("cuda", H200), False)])
@pytest.mark.parametrize("name", ["attention", "attention_with_lse", "attention_backward"])
def test_on_a_gpu_torchs_separate_operators_are_left_out(name: str, target: Target, is_there: bool) -> None:
    entry = catalog.find(name)
    (problem,) = draw(entry, "cuda", 7, 1)
    found = {point.provider for point in _others(entry, problem, Values(), target)}
    assert "sdpa_flash" in found
    assert all((name in found) is is_there for name in entry.config.unfused)


def test_no_loss_is_hidden_in_the_sum() -> None:
    found = (
        problem("torch", other("quack", 0.5, "faster")),  # the baseline itself is called, and a peer wins
        problem("triton", other("torch", 2.0, "slower"), other("quack", 0.8, "faster")),
        problem("triton", other("torch", 0.9, "faster")),
        problem("triton", other("torch", 0.7, "undecided")),
    )
    sum_ = summary("torch", 0.03, found)
    assert (sum_.problems, sum_.decided, sum_.within, sum_.slower) == (4, 3, 2, 1)
    assert sum_.over_baseline == pytest.approx((2.0 * 0.9 * 0.7) ** (1 / 3))
    assert sum_.over_best == pytest.approx((0.5 * 0.8 * 0.9 * 0.7) ** (1 / 4))
    assert [(one.provider, best.provider, best.ratio) for one, best in worst(found, 2)] == [
        ("torch", "quack", 0.5),
        ("triton", "torch", 0.7),
    ]


GOOD = factory.measurement("softmax", "torch", 777, median_us=10.0).outcome
BAD = Outcome(status="runtime_error", error="777 is not divisible by 8")
PASSING = Outcome(status="timeout", error="120 s")


def three() -> Drawn:
    """A problem with a called configuration, torch and a peer."""
    side = Side("tree", Path("tree"), "softmax")
    values = Values({"rows": 3, "columns": 777, "dtype": "float32"})
    names = ("triton_row", "torch", "quack")
    points = (Point(kernel="softmax", provider=name, problem=values) for name in names)
    match = Match(tuple(Candidate(side, point, point.provider) for point in points))
    return Drawn(catalog.find("softmax"), Choice("triton_row", {}, "guessed", ""), match)


def test_a_provider_that_fails_is_no_longer_compared() -> None:
    one = three()
    assert one.without_failures({"torch": GOOD}) is one
    assert one.without_failures({"triton_row": BAD}) is one, (
        "without the called configuration nothing is left"
    )
    assert one.without_failures({"torch": PASSING}) is one, "the next run tries it again"
    unkeyed = GOOD.replace(unkeyed="/tmp/elsewhere.py")
    assert one.without_failures({"quack": unkeyed}).failed["quack"].startswith("it depends on files")
    left = one.without_failures({"quack": BAD, "torch": GOOD})
    assert [each.point.provider for each in left.match.candidates] == ["triton_row", "torch"]
    assert left.without_failures({"torch": BAD}).failed.keys() == {"torch", "quack"}


def test_a_failure_leaves_the_other_providers_rounds_to_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, and its reason stays in the record."""
    asked: list[str] = []

    class Failing:
        def __init__(self, *given: object, **options: object) -> None:
            del given, options

        def start(self) -> None:
            pass

        def measure(self, where: str, point: Point) -> Outcome:
            asked.append(point.provider)
            return BAD if point.provider == "quack" else GOOD

        def __enter__(self) -> Failing:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(session, "Supervisor", Failing)
    stage = Stage.__new__(Stage)
    stage.config = HeldoutConfig.model_construct(
        rounds=2, most_rounds=2, by=0.03, seed=0, point_timeout_s=1.0, timing=TimingConfig()
    )
    stage.session = Session(Device(kind="cpu", name="CPU", index=0), TimingSettings(), 0, 1.0, tmp_path)
    stage.draw, stage.entries, stage.run = 7, [catalog.find("softmax")], "r"
    for expected in (["triton_row", "torch", "quack", "torch", "triton_row"], []):
        stage.drawn = [three()]
        stage.hold(math.inf)
        assert asked == expected
        asked.clear()
        found = stage.drawn[0].result(stage.measured, judge(stage.measured))
        assert (found.rounds, [each.provider for each in found.others]) == (2, ["torch"])
        assert found.failed == {"quack": "777 is not divisible by 8"}


@pytest.mark.long
@pytest.mark.slow
def test_the_command_measures_goes_on_and_leaves_its_samples(tmp_path: Path) -> None:
    words = ("kernel=softmax", "problems=1", "draw=7", "rounds=2", "most_rounds=2", "device=cpu")
    command = ("-m", "pipeline.heldout", *words, f"output={tmp_path}")
    done = python(*command, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Problems that nobody tuned" in done.stdout
    (record,) = tmp_path.glob("held_out/softmax/*/7.json")
    found = HeldOut.from_json(record.read_bytes())
    (one,) = found.problems
    assert (one.how, one.provider, found.draw) == ("torch", found.baseline, 7)
    lines = record.with_suffix(".jsonl").read_text().splitlines()
    turns = [Turn.from_json(line) for line in lines]
    assert {turn.round for turn in turns} == {0, 1}
    again = python(*command, TMPDIR=str(tmp_path))
    assert again.returncode == 0, again.stderr
    left = record.with_suffix(".jsonl").read_text().splitlines()
    assert left[: len(lines)] == lines, "no sample is lost"
    if all(turn.outcome.timing for turn in turns):
        assert left == lines, "nothing is measured twice"


def test_a_kernel_that_ops_lacks_is_a_sentence() -> None:
    done = python("-m", "pipeline.heldout", "kernel=sparsify", "device=cpu")
    assert done.returncode == 2
    assert "kernel_pipeline.ops has no sparsify: write one of " in done.stderr
