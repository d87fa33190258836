"""Submissions to problems in KernelBench's format, judged by the real command.

A busy machine may have no time to trust. Then a right submission can't be judged, and the reason says so.
"""

import ast
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline.errors import UserError
from kernel_pipeline.judging import folder, kernelbench
from kernel_pipeline.judging.formats import UnfitError
from kernel_pipeline.judging.kernelbench_code import counterparts, slots
from kernel_pipeline.judging.sources import Resized
from kernel_pipeline.machine import confinement
from pipeline.judge import size_of
from pipeline.verdicts import judged
from tests.project import python

JUDGED = Path(__file__).parents[1] / "judged"

BUSY = "judge it again on a quiet machine"


def judge(output: Path, problem: Path, *submissions: str, **options: object) -> tuple[int, dict[str, Any]]:
    """Run the command, by default on a CPU. Return its exit code, and its JSON with the results by
    submission."""
    options = {"rounds": 2, "device": "cpu"} | options
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if options["device"] == "cuda" else ""
    words = [f"{name}={value}" for name, value in options.items()]
    if submissions:
        files = (str(problem.with_name(f"{problem.stem}_by") / f"{name}.py") for name in submissions)
        words.append(f"submission={','.join(files)}")
    brief = ("torch_compile=false", "preset=smoke", "most_rounds=2", "format=json")
    output.mkdir(exist_ok=True)
    command = ("-m", "pipeline.judge", f"kernel={problem}", f"output={output}", *brief, *words)
    # One thread: on a busy machine several wait for each other far longer than they compute.
    done = python(*command, TMPDIR=str(output), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=visible)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((output / "judge" / problem.stem / "verdict.json").read_text())
    found["results"] = {Path(one["submission"]).stem: one for one in found["results"]}
    return done.returncode, found


def is_right(one: dict[str, Any]) -> bool:
    """Whether a submission was right for everything, and has a time unless the machine was busy."""
    if one["verdict"] == "correct":
        speed = one["speed"]
        for times in one["timed"]:
            assert times["rounds"] >= 2
            assert not any(times[name] for name in times if name.endswith(("host_us", "own_us")))
        return bool(one["timed"] and 0 < speed["low"] <= speed["times"] <= speed["high"])
    return one["verdict"] == "can't be judged" and BUSY in one["reason"]


@pytest.mark.slow
def test_wrong_submissions_and_cheats_are_told_from_a_right_one_and_the_best_is_timed_beside(
    tmp_path: Path,
) -> None:
    names = ("right", "drops_nan", "overflows", "zeros", "input", "caches", "skips", "edits_the_tolerances")
    best = tmp_path / "best.py"
    best.write_bytes((JUDGED / "softmax_by" / "right.py").read_bytes())
    code, found = judge(tmp_path, JUDGED / "softmax.py", *names, best=best)
    results = found["results"]
    assert [*results] == [*names, "best"] and is_right(results["right"]) and is_right(results["best"])
    if {results[name]["verdict"] for name in ("right", "best")} == {"correct"}:
        assert 0.2 < results["right"]["over_best"]["times"] < 5
        assert results["right"]["timed"][0]["best_us"] > 0
    assert results["best"]["over_best"] is None
    others = [f"batch_size={rows} dim={width}" for rows, width in ((7, 7), (13, 16381))]
    also = [name for one in others for name in (one, f"{one}, alternating signs")]
    assert results["right"]["right"] == [*folder.DISTRIBUTIONS, *also]
    assert results["right"]["is_repeatable"] is True
    verdicts = {name: results[name]["verdict"] for name in names[1:]}
    assert verdicts == {
        **dict.fromkeys(("drops_nan", "overflows", "zeros", "input"), "incorrect"),
        **dict.fromkeys(("caches", "skips", "edits_the_tolerances"), "cheats"),
    }
    assert (code, found["skipped"], found["mode"]) == (1, {}, "train")
    assert "some nan: " in results["drops_nan"]["reason"]
    # KernelBench's judge accepts zeros within 1e-4 of the answer, and looks at no later inputs.
    own_checks = {name: results[name]["own_check"] for name in ("right", "zeros", "overflows", "input")}
    assert own_checks == {"right": "passes", "zeros": "passes", "overflows": "passes", "input": "fails"}
    page = (tmp_path / "judge" / "softmax" / "verdict.html").read_text()
    assert all(f"{name}.py" in page for name in names) and "large values: " in page
    assert "host us" in page and "own us" in page and "On a CPU there is neither" in page
    assert "own check passes" in page and "ran in mode train" in page
    assert "large values" in results["overflows"]["reason"]
    assert "in the memory of an input" in results["input"]["reason"]
    assert "wrong for inputs that it can't know" in results["caches"]["reason"]
    is_isolated = found["isolation"].startswith("isolated")
    edits = "wrong for inputs" if is_isolated else "it changed the files of the problem"
    assert edits in results["edits_the_tolerances"]["reason"]

    # The file has the smallest inputs: no size is scaled below 16.
    saved = torch.load(results["overflows"]["failing"])
    (x,) = saved["inputs"]
    assert saved["problem"] == {"batch_size": 16, "dim": 256, "distribution": "large_values"}
    assert x.shape == (16, 256)
    torch.testing.assert_close(saved["right"], [torch.softmax(x.double(), dim=1)])


@pytest.mark.slow
def test_a_board_ranks_a_folder_and_judges_only_what_has_changed(tmp_path: Path) -> None:
    by = tmp_path / "by"
    by.mkdir()
    for name in ("right", "sixteens", "tail", "zeros"):
        (by / f"{name}.py").write_bytes((JUDGED / "softmax_by" / f"{name}.py").read_bytes())
    (by / "broken.py").write_text("x = (")

    def board(*words: str) -> tuple[list[str], str]:
        problem = f"kernel={JUDGED / 'softmax.py'}"
        brief = ("rounds=0", "preset=smoke", "device=cpu", "batch_size=16", "dim=256", f"output={tmp_path}")
        done = python("-m", "pipeline.judge", "board", str(by), problem, *brief, *words, TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    lines, sentences = board("format=json")
    found = [json.loads(line)["judged"] for line in lines]
    assert [(Path(one["submission"]).stem, one["verdict"]) for one in found] == [
        ("right", "correct"),
        ("sixteens", "correct"),
        ("tail", "correct"),
        ("broken", "incorrect"),
        ("zeros", "incorrect"),
    ]
    assert "4 of 5 submissions are judged now" in sentences
    at_other_sizes = [one.get("wrong_at") for one in found[:3]]
    assert at_other_sizes[0] is None and found[0]["right"][-1] == "batch_size=13 dim=251, alternating signs"
    assert at_other_sizes[1].startswith("batch_size=7 dim=7: it fails: ")
    assert at_other_sizes[2].startswith("batch_size=7 dim=7: 49 of 49 elements are wrong")
    assert (found[0]["memcheck"], found[0]["reason"]) == (
        "did not run: this machine has no GPU",
        "it is not timed, because rounds=0",
    )
    assert "'(' was never closed" in found[3]["reason"]
    page = (tmp_path / "judge" / "board.html").read_text()
    assert page.index("right.py") < page.index("broken.py") < page.index("zeros.py")
    assert page.count("right at the given sizes only: wrong at batch_size=7 dim=7: ") == 2

    with (by / "zeros.py").open("a") as file:
        file.write("# edited\n")
    rewards, sentences = board("reward=true")
    assert rewards == ["0.0000"] * 5 and "1 of 5 submissions are judged now" in sentences

    (by / "tail.py").rename(by / "moved.py")
    (by / "tail.py").write_bytes((by / "right.py").read_bytes())
    lines, sentences = board("format=json")
    assert "0 of 6 submissions are judged now" in sentences, "the content of each file has a verdict"
    known = {Path(one["submission"]).stem: one for one in (json.loads(line)["judged"] for line in lines)}
    assert known["tail"].get("wrong_at") is None and "wrong_at" in known["moved"] and len(known) == 6


SINC = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sinc(x)


n = 2**16


def get_inputs():
    return [torch.randn(n)]


def get_init_inputs():
    return []
"""

HARMS = """
import os
import socket
import tempfile
import time
from pathlib import Path

import torch

PLACES = {places}


def connects():
    for host, port in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
        socket.create_connection((host, port), 5).close()
    return True


def writes():
    for place in PLACES:
        Path(place).write_text("harm")
    return True


def forks():
    for _ in range(1000 + 16 * os.cpu_count()):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    time.sleep(60)


def hoards():
    held = [bytearray(1 << 26) for _ in range(80)]
    time.sleep(60)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {harm}()
        return torch.sinc(x)
"""


@pytest.mark.slow
def test_a_harmful_submission_harms_nothing_and_each_has_its_sentence(tmp_path: Path) -> None:
    limits = confinement.limits(None, [], shares_gpu=False)
    if (why := confinement.why_not(limits)) is not None:
        pytest.skip(f"this machine confines no process: {why}")
    problem = tmp_path / "sinc.py"
    problem.write_text(SINC)
    (tmp_path / "sinc_by").mkdir()
    harms = ("connects", "writes", "forks", "hoards")
    places = [str(Path.home() / "harm"), str(Path(__file__).with_name("harm"))]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for harm in harms:
            text = HARMS.format(harm=harm, places=places, port=server.getsockname()[1])
            (tmp_path / "sinc_by" / f"{harm}.py").write_text(text)
        code, found = judge(tmp_path, problem, *harms, memory_gb=3, n=4096)
    reasons = {name: found["results"][name]["reason"] for name in harms}
    assert (code, found["isolation"]) in ((1, judged.ISOLATED), (1, judged.ISOLATED + judged.AS_ROOT))
    assert {one["verdict"] for one in found["results"].values()} == {"incorrect"}, reasons
    assert "Connection refused" in reasons["connects"] and "Read-only file system" in reasons["writes"]
    assert "it started more than" in reasons["forks"]
    assert "it used more than 3 GB of memory" in reasons["hoards"]
    assert not any(Path(place).exists() for place in places)


OTHERS = {
    "reads": ("it reads files that the verdict does not record: {}", "x * FACTOR"),
    "nests": ("returns (tensor,), and the problem's own code returns tensor", "(x,)"),
    "adds": ("returns (tensor, 3), and the problem's own code returns tensor", "x, 3"),
    "asks": ("it runs out of memory, and the problem's own code does not: ", "x + torch.empty(1 << 46)"),
    "hangs": ("point_timeout_s: no answer in 20 s; its worker was replaced", "time.sleep(600)"),
}


@pytest.mark.slow
def test_a_submission_that_reads_files_hangs_nests_its_output_or_asks_for_memory_is_not_correct(
    tmp_path: Path,
) -> None:
    problem, factor = tmp_path / "sinc.py", tmp_path / "factor.txt"
    problem.write_text(SINC)
    factor.write_text("1.0")
    (tmp_path / "sinc_by").mkdir()
    for name, (_, returned) in OTHERS.items():
        reads = f"FACTOR = float(open({str(factor)!r}).read())\n" if name == "reads" else ""
        lines = ["class ModelNew(torch.nn.Module):", "    def forward(self, x):", "        x = torch.sinc(x)"]
        text = "\n".join([*lines, f"        return {returned}", ""])
        (tmp_path / "sinc_by" / f"{name}.py").write_text(f"import time\n\nimport torch\n\n{reads}{text}")
    code, found = judge(tmp_path, problem, *OTHERS, rounds=0, n=4096, point_timeout_s=20)
    for name, (reason, _) in OTHERS.items():
        one = found["results"][name]
        assert reason.format(factor) in one["reason"]
        assert one["verdict"] == ("can't be judged" if name == "reads" else "incorrect")
    assert code == 1


@pytest.mark.slow
def test_where_the_problem_fails_in_isolation_the_verdict_says_not_isolated(tmp_path: Path) -> None:
    problem = tmp_path / "sinc.py"
    problem.write_text(SINC)
    # A confined process has a /dev/shm of its own, so it does not find the kernel's folder there.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        _, found = judge(Path(folder), problem, n=4096, rounds=0)
    (one,) = found["results"].values()
    assert (one["verdict"], one["reason"]) == ("correct", "it is not timed, because rounds=0")
    assert found["isolation"].startswith("not isolated: ")


@pytest.mark.slow
def test_weights_are_those_of_the_reference_and_labels_stay_labels(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "linear.py", "renamed", "packed", "fails", width=48)
    results = found["results"]
    assert found["workloads"] == [{"rows": 32, "features": 64, "width": 48, "classes": 10}]
    assert is_right(results["renamed"]), results["renamed"]
    assert results["packed"]["verdict"] == "can't be judged"
    assert "ModelNew computed packed from its first weights" in results["packed"]["reason"]
    assert results["fails"]["verdict"] == "incorrect"
    place = f"{JUDGED / 'linear_by' / 'fails.py'}:15: `return hidden @ labels`: RuntimeError"
    assert f"it fails: {place}" in results["fails"]["reason"]
    saved = torch.load(results["fails"]["failing"])
    assert [x.dtype for x in saved["inputs"]] == [torch.float32, torch.int64]
    assert set(saved["weights"]) == {"layer.weight", "layer.bias", "offsets"}
    assert code == 1


@pytest.mark.slow
def test_what_is_not_rounded_is_wrong(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "rounding.py", "right", "never_rounds", n=256, other_sizes=False)
    assert is_right(found["results"]["right"])
    assert found["results"]["right"]["right"] == list(folder.DISTRIBUTIONS)
    assert (code, found["results"]["never_rounds"]["verdict"]) == (1, "incorrect")


@pytest.mark.slow
def test_signs_tell_answers_apart_where_inputs_are_positive_and_triton_is_interpreted(tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / "positive.py", "copies", "triton_relu", "zero_for_nan")
    copies, triton, zero = (found["results"][name] for name in ("copies", "triton_relu", "zero_for_nan"))
    assert (code, copies["verdict"]) == (1, "incorrect")
    assert copies["reason"].startswith("alternating signs: ")
    assert (triton["verdict"], triton["speed"]) == ("correct", None)
    assert "interpreter" in triton["reason"]
    assert (zero["verdict"], zero["reason"].partition(": ")[0]) == ("incorrect", "some nan")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "why"),
    [("normalized", "any answer passes this problem"), ("dropout", "its answer is random")],
)
def test_a_problem_that_can_not_tell_answers_apart_is_named(problem: str, why: str, tmp_path: Path) -> None:
    code, found = judge(tmp_path, JUDGED / f"{problem}.py")
    (one,) = found["results"].values()
    assert (code, one["verdict"], one["speed"]) == (3, "can't be judged", None)
    assert why in one["reason"]


def test_sizes_are_the_whole_numbers_that_a_file_assigns(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(
        "class Model: ...\n"
        "def get_inputs(): ...\n"
        "def get_init_inputs(): ...\n"
        "batch: int = 2 * 64\nheight = width = 2**8\nheads = 8\n"
        "depth, length = 24, 3\nfirst, second = 1, f()\n"
        "area = height * width\nrate = 0.5\naxis = -1\nflag = True\ntwice = 1\ntwice = 2\n"
    )
    found = kernelbench.problem(path)
    assert found.sizes == {"batch": 128, "height": 256, "heads": 8, "depth": 24, "length": 3}
    (scaled,) = found.plan({"heads": 4}, 1 / 32).tests
    assert dict(scaled) == {"batch": 16, "height": 16, "heads": 4, "depth": 16, "length": 3}
    with pytest.raises(UserError, match=r"unknown size of problem\.py 'hight'\. Did you mean 'height'\?"):
        found.plan({"hight": 4}, 1)


def test_a_size_with_the_name_of_an_option_has_another_name() -> None:
    assert [size_of(name) for name in ("problem_seed", "problem_rows", "rows")] == [
        *("seed", "problem_rows", "rows")
    ]


def test_the_sizes_and_the_device_of_a_file_are_replaced_line_by_line() -> None:
    text = "n = 4 * 8\nm = n + 1\nh, w = 8, 9\nx = f(n, device='cuda:0').cuda()\n"
    made = ast.unparse(Resized({"n": 5, "w": 6}, "cpu").module(ast.parse(text)))
    assert made.splitlines() == ["n = 5", "m = n + 1", "h = 8", "w = 6", "x = f(n, device='cpu').to('cpu')"]
    kept = ast.unparse(Resized({}, "cuda").module(ast.parse(text)))
    assert "cuda:0" in kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n", "problem.py:1: invalid syntax"),
        ("class Model: ...\n", "problem.py:1: there is no function get_inputs"),
        ("def get_inputs(): ...\ndef get_init_inputs(): ...\n", "problem.py:1: there is no class Model"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_and_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(text)
    done = python("-m", "pipeline.judge", f"kernel={path}", f"output={tmp_path}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{path.parent}/{says}" in done.stderr


def test_submissions_get_names_of_their_own() -> None:
    names: list[str] = []
    for path in ("a/kernel.py", "b/kernel.py", "1-fast.py", "reference.py"):
        names.append(folder.provider_name(Path(path), names))
    assert names == ["kernel", "kernel_2", "s_1_fast", "reference_2"]


class Layers(torch.nn.Module):
    """Two layers of one shape, under names of a test's choice."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        for name in (first, second):
            setattr(self, name, torch.nn.Parameter(torch.randn(3, 3)))


def test_weights_of_one_shape_are_paired_by_their_names_or_values() -> None:
    def held(*names: str, seed: int = 0) -> list[Any]:
        torch.manual_seed(seed)
        return slots(Layers(*names))

    reference = held("a", "b")
    assert counterparts(held("b", "a"), held("b", "a", seed=1), reference) == ["a", "b"]
    assert counterparts(held("x", "y"), held("x", "y", seed=1), reference) == ["x", "y"]
    with pytest.raises(UnfitError, match=r"ModelNew has x \(3, 3\), y \(3, 3\), and the reference has a"):
        counterparts(held("x", "y", seed=2), held("x", "y", seed=1), reference)
