"""A mistake on the judge's command line, or in a file that it names, ends in one sentence."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline import judge
from pipeline.command.options import JudgeConfig
from pipeline.command.run import run_stage
from pipeline.command.words import positional
from tests.commands import exit_code
from tests.pipeline.test_judge import JUDGED
from tests.project import python

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

dim = 64

def get_inputs():
    return [torch.rand(16, dim)]

def get_init_inputs():
    return []
"""

FILES: dict[str, str | bytes] = {
    "problem.py": PROBLEM,
    "empty.py": "",
    "syntax.py": "import torch\ndef f(:\n",
    "latin.py": b"# a text\nx = '\xfc'\n",
    "latin.json": b'{\n"\xfc": 1}',
    "empty.json": "{}",
    "half.json": '{"name": ',
    "folder/none.txt": "",
    "task/task.yml": "files: [1\n",
}

SAID = {
    "kernl=problem.py": "unknown option 'kernl'. Did you mean 'kernel'? Known: action, kernel, submission, ",
    "": "kernel is missing: write kernel=PATH with the path of a problem.",
    "submission=empty.py": "kernel is missing: write kernel=PATH with the path of a problem.",
    "kernel=": "kernel: is empty; write a path.",
    "kernel=absent.py": "absent.py can't be read: No such file or directory.",
    "kernel=softmax": "kernel=softmax: softmax is a kernel of this repository, which pipeline.sweep ",
    "kernel=folder": "folder is a folder without task.yml: only a KernelBot task is a folder; ",
    "kernel=task": "task/task.yml:2: it is not valid YAML: ",
    "kernel=syntax.py": "syntax.py:2: invalid syntax.",
    "kernel=latin.py": "latin.py:2: it is not text in UTF-8.",
    "kernel=empty.py": "empty.py:1: there is no function get_inputs: ",
    "kernel=half.json": "half.json:1: it is not JSON: ",
    "kernel=latin.json": "latin.json:2: it is not text in UTF-8.",
    "kernel=problem.py submision=empty.py": "unknown option 'submision'. Did you mean 'submission'?",
    "kernel=problem.py scal=0.5": "unknown option 'scal'. Did you mean 'scale'?",
    "kernel=problem.py rouns=5": "unknown option 'rouns'. Did you mean 'rounds'?",
    "kernel=problem.py width=5": "unknown size of problem.py 'width'. Known: dim.",
    "kernel=problem.py dim=0": "dim: write a size, a whole number from 1 to 2**63 - 1, not ",
    "kernel=problem.py dim=wide": "dim: write a size, a whole number from 1 to 2**63 - 1, not ",
    "kernel=problem.py submission=": "submission: is empty; write a path, or leave it out.",
    "kernel=problem.py submission=folder": "folder is a folder: write a submission's file, or judge board ",
    "kernel=problem.py submission=absent.py": "absent.py can't be read: No such file or directory.",
    "kernel=problem.py submission=problem.py": "problem.py:1: there is no class ModelNew: a submission has a "
    "class ModelNew(torch.nn.Module). Leave submission= out to judge the problem's own code.",
    "kernel=problem.py best=absent.py": "absent.py can't be read: No such file or directory.",
    "kernel=problem.py best=empty.py": "empty.py:1: there is no class ModelNew: ",
    "board kernel=problem.py": "write the folder with the submissions: judge board FOLDER kernel=PROBLEM.",
    "board empty.py kernel=problem.py": "write the folder with the submissions: judge board FOLDER ",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", SAID)
def test_a_mistake_is_one_sentence(words: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = positional([*words.split(), "device=cpu", f"output={files}"], "action", "submission")
    code = exit_code(run_stage, "judge", JudgeConfig, judge.run, *given)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {SAID[words]}")


@pytest.mark.parametrize("output", ["empty.py", "/proc/absent"])
def test_an_output_that_can_not_be_written_is_one_sentence(
    output: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("kernel=problem.py", "device=cpu", f"output={output}")
    code = exit_code(run_stage, "judge", JudgeConfig, judge.run, *given)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: no results can be written to {output}/judge/problem: no folder can be ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "said"), [("4k", "can't copy the problem and its submissions to "), ("24k", "can't write ")]
)
def test_a_full_disk_is_one_sentence(room: str, said: str, files: Path) -> None:
    disk = files / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        given = (f"kernel={files}/problem.py", "device=cpu", "rounds=0", f"output={disk}")
        done = python("-m", "pipeline.judge", *given)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    error = done.stderr.splitlines()[-1]
    assert (done.returncode, error.startswith(f"error: {said}{disk}")) == (2, True), done.stderr
    assert "No space left on device" in error and "Traceback" not in done.stderr


MALFORMED = {
    "problem.py": {"empty.py": "1: there is no class ModelNew: ", "latin.py": "2: it is not text in UTF-8"},
    JUDGED / "sorts": {
        "syntax.py": "2: invalid syntax",
        "empty.py": "1: there is no function custom_kernel: ",
    },
    JUDGED / "flashinfer/definitions/gemm_n256_k256.json": {
        "half.json": "1: it is not JSON: ",
        "empty.json": " object missing required field `name`",
    },
}


@pytest.mark.parametrize("problem", MALFORMED, ids=str)
@pytest.mark.parametrize("is_board", [False, True])
def test_a_submission_that_is_not_in_the_format_is_incorrect_alone_and_on_a_board(
    problem: Path | str, is_board: bool, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, by = MALFORMED[problem], files / "by"
    by.mkdir()
    for name in names:
        (files / name).rename(by / name)
    paths = [f"{by}/{name}" for name in names]
    given = ("action=board", f"submission={by}") if is_board else (f"submission=[{','.join(paths)}]",)
    options = (f"kernel={problem}", "device=cpu", f"output={files}", "format=json")
    code = exit_code(run_stage, "judge", JudgeConfig, judge.run, *options, *given)
    out, _ = capsys.readouterr()
    lines = [json.loads(line)["judged"] for line in out.splitlines()] if is_board else []
    found = lines or json.loads(out)["results"]
    assert code == (0 if is_board else 1)
    assert [one["submission"] for one in found] == (sorted(paths) if is_board else paths)
    assert {one["verdict"] for one in found} == {"incorrect"}
    assert all(names[Path(one["submission"]).name] in one["reason"] for one in found), found


def test_paths_without_options_are_refused(files: Path) -> None:
    done = python("-m", "pipeline.judge", str(files / "problem.py"), "submission=empty.py")
    said = f"error: can't read '{files}/problem.py': write kernel={files}/problem.py for a problem, "
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(said)
