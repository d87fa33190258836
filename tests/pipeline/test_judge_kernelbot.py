"""Submissions to KernelBot's tasks, judged by the real command."""

import re
import shutil
from math import isclose
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline.errors import UserError
from kernel_pipeline.judging import folder, imported
from kernel_pipeline.judging.formats import UnfitError
from kernel_pipeline.judging.kernelbot_code import KernelBotCode, _complaint, _detached
from kernel_pipeline.records.base import Values
from pipeline.verdicts import formats, judged
from pipeline.verdicts.judged import Speed
from tests.pipeline.test_judge import JUDGED, is_right, judge

CPU = torch.device("cpu")


@pytest.mark.slow
def test_the_verdict_is_ours_where_the_checker_of_a_task_is_weak(tmp_path: Path) -> None:
    names = ("right", "wavers", "input", "unwritten")
    code, found = judge(tmp_path, JUDGED / "sorts", *names, scale=0.25)
    results = found["results"]
    assert is_right(results["right"]), results["right"]
    verdicts = {name: results[name]["verdict"] for name in names[2:]}
    assert verdicts == {"input": "incorrect", "unwritten": "incorrect"}
    assert is_right(results["wavers"]), results["wavers"]
    assert [results[name]["is_repeatable"] for name in names[:2]] == [True, False]
    own_checks = [results[name]["own_check"] for name in ("right", "input", "unwritten")]
    assert own_checks == ["passes", "fails", "fails"]
    assert found["workloads"] == [{"size": size} for size in (33, 64, 1024, 2048)]
    # The last test takes all distributions of inputs; the benchmarks are verified, too.
    others = [f"size={size}" for size in (33, 1024, 2048)]
    assert results["right"]["right"] == [*folder.DISTRIBUTIONS, *others]
    assert [one["workload"] for one in results["right"]["timed"]] in ([], found["workloads"][2:])
    assert code == 1
    saved = torch.load(results["input"]["failing"])
    torch.testing.assert_close(saved["right"], [saved["inputs"][0].double().sort().values])


@pytest.mark.long
@pytest.mark.slow
def test_numbers_have_to_be_rounded_as_the_task_rounds(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "rounds", "right", "never_rounds")
    assert is_right(found["results"]["right"]), found["results"]["right"]
    assert (code, found["results"]["never_rounds"]["verdict"]) == (1, "incorrect")
    assert found["skipped"] == {}


@pytest.mark.slow
def test_a_checker_that_does_not_use_the_reference_accepts_every_right_answer(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "roots", "negative", "input")
    assert is_right(found["results"]["negative"]), found["results"]["negative"]
    reason = found["results"]["input"]["reason"]
    assert (code, reason) == (1, "the task's check_implementation says: its square is not the input")


def test_tasks_do_not_share_the_names_of_their_files(tmp_path: Path) -> None:
    codes = {}
    for name in ("sorts", "rounds"):
        problem = formats.problem(JUDGED / name)
        plan = problem.plan({}, 1)
        folder.write(tmp_path / name, problem, plan, {})
        sizes = imported.read(tmp_path / name).plain(plan.tests[0])
        codes[name] = code = KernelBotCode(tmp_path / name)
        learned = code.learn(sizes, CPU)
        assert learned == {"sorts": ("0:1",), "rounds": ()}[name]
        (x,), _ = code.inputs(sizes, CPU, 5, learned)
        right = code.answer(sizes, CPU, learned)(x)
        assert {one.dtype for one in right} == {torch.float64}
        assert code.error(sizes, (x,), tuple(one.float() for one in right), learned) is None
        wrong = tuple(one.float() * 2 for one in right)
        assert "mismatch found" in (code.error(sizes, (x,), wrong, learned) or "")


def test_a_task_whose_own_code_never_rounds_is_named(tmp_path: Path) -> None:
    shutil.copytree(JUDGED / "rounds", tmp_path / "rounds")
    reference = tmp_path / "rounds" / "reference.py"
    reference.write_text(reference.read_text().replace(".to(torch.float8_e4m3fn)", ""))
    problem = formats.problem(tmp_path / "rounds")
    plan = problem.plan({}, 1)
    folder.write(tmp_path / "kernel", problem, plan, {})
    sizes = imported.read(tmp_path / "kernel").plain(plan.tests[0])
    with pytest.raises(UnfitError, match="its own code never rounds"):
        KernelBotCode(tmp_path / "kernel").learn(sizes, CPU)


def test_the_workloads_of_a_task_are_scaled_and_pinned() -> None:
    problem = formats.problem(JUDGED / "rounds")
    plan = problem.plan({"rows": 7}, 0.25)
    assert [dict(one) for one in (*plan.tests, *plan.timed)] == [
        {"rows": 3, "group": 16, "limits": "[-448, 128]", "gain": 0.5, "is_clamped": "absent"},
        {"rows": 5, "group": 32, "limits": "[-448, 128]", "gain": 1.5, "is_clamped": "true"},
        {"rows": 7, "group": 64, "limits": "[-448, 128]", "gain": 1.0, "is_clamped": "absent"},
    ]
    with pytest.raises(UserError, match=r"unknown size of rounds 'row'\. Did you mean 'rows'"):
        problem.plan({"row": 7}, 1)


TASK = "files:\n- {name: reference.py, source: reference.py}\ntests:\n- {n: 1}\n"
REFERENCE = "def generate_input(n): ...\ndef ref_kernel(data): ...\ncheck_implementation = print\n"


@pytest.mark.parametrize(
    ("result", "is_right"),
    [
        *(("", True), (None, True), (True, True), ((True, ""), True)),
        *(("off by 1", False), (False, False), ((False, "off by 1"), False)),
    ],
)
def test_a_checker_answers_with_a_text_a_flag_or_both(result: object, is_right: bool) -> None:
    assert (_complaint(result) is None) == is_right


def test_a_method_that_an_output_has_of_its_own_is_not_called() -> None:
    lazy: Any = torch.zeros(2)
    lazy.detach = lambda: torch.ones(2)
    assert _detached(lazy).tolist() == [0, 0]
    assert not _detached(torch.nn.Parameter(torch.zeros(2))).requires_grad


def test_real_numbers_of_workloads_stay_numbers_and_other_values_become_words() -> None:
    made, literals = imported.worded([{"eps": 1e-5, "m": [1, 2], "n": 3}, {"eps": 0.5, "m": [4], "n": 5}])
    assert literals == ("m",)
    assert [dict(one) for one in made] == [
        {"eps": 1e-5, "m": "[1, 2]", "n": 3},
        {"eps": 0.5, "m": "[4]", "n": 5},
    ]


@pytest.mark.parametrize(
    ("task", "reference", "says"),
    [
        ("tests: [\n", REFERENCE, "task.yml:2: it is not valid YAML"),
        (TASK.replace("reference.py}", "absent.py}"), REFERENCE, "task.yml:2: the file "),
        (TASK.replace("{n: 1}", "{n: {m: 1}}"), REFERENCE, "task.yml:4: n must be a number"),
        (TASK.replace("\n- {n: 1}", " []"), REFERENCE, "task.yml:1: it has neither tests nor benchmarks"),
        (TASK, "def ref_kernel(data): ...\n", "reference.py:1: there is no function generate_input"),
        (TASK, REFERENCE, "submission.py:1: there is no function custom_kernel"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_and_line(
    task: str, reference: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "task.yml").write_text(task)
    (tmp_path / "reference.py").write_text(reference)
    (tmp_path / "submission.py").write_text("def kernel(data): ...\n")
    with pytest.raises(UserError, match=f"^{re.escape(f'{tmp_path}/{says}')}.*[.]$"):
        formats.problem(tmp_path).submission(tmp_path / "submission.py")


def test_the_speed_up_of_several_benchmarks_is_their_geometric_mean() -> None:
    speeds = [
        Speed(times=2, low=1.6, high=2.5, decided="faster"),
        Speed(times=8, low=8, high=8, decided="faster"),
    ]
    timed = [
        judged.WorkloadTimes(workload=Values(), speed=one, us=1, reference_us=2, rounds=2) for one in speeds
    ]
    one = judged.with_times(judged.Judged(submission="x", verdict="correct"), timed, "given", 0.01)
    assert one.speed is not None and isclose(one.speed.times, 4)
    assert isclose(one.speed.high / one.speed.low, (2.5 / 1.6) ** 0.5, rel_tol=1e-3)
    assert (one.speed.decided, one.over_compiled) == ("faster", None)
