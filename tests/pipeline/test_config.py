"""A mistake on the command line ends in one sentence on stderr that says what to write instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels
from pipeline import sweep
from pipeline.config import SweepConfig, run_stage
from pipeline.errors import UserError
from pipeline.measure import device, grid
from tests.planted.tree import Tree

HERE = Path(__file__).parents[2]

MISTAKES = {
    "kernel=sofmax": "unknown kernel 'sofmax'. Did you mean 'softmax'? Known: gelu, layernorm, "
    "rmsnorm, softmax, square.",
    "provider=tritn_row": "unknown provider of softmax 'tritn_row'. Did you mean 'triton_row'? Known: ",
    "provider=[torch,nope]": "unknown provider of softmax 'nope'.",
    "provider=1": "provider: input should be a valid string, not 1.",
    "provider=[]": "provider: is empty; write a value or a list of values.",
    "dtype=float64": "dtype: unknown dtype 'float64'.",
    "dtype=[float32,fp16]": "dtype: unknown dtype 'fp16'.",
    "preset=smke": "unknown preset 'smke'. Did you mean 'smoke'? Known: auto, cpu, smoke, standard.",
    "prest=smoke": "unknown option 'prest'. Did you mean 'preset'? Known: ",
    "timing.max_secnds=1": "unknown option 'timing.max_secnds'. Did you mean 'timing.max_seconds'? Known: ",
    "+timing.foo=1": "unknown option 'timing.foo'.",
    "+foo=1": "unknown option 'foo'.",
    "timing.max_seconds=0": "timing.max_seconds: input should be greater than 0, not 0.",
    "timing.max_seconds=long": "timing.max_seconds: input should be a valid number",
    "timing.timer=stopwatch": "timing.timer: input should be 'auto', 'graph', ",
    "timing=slow": "unknown timing 'slow'. Known: default.",
    "tracking=lokal": "unknown tracking 'lokal'. Did you mean 'local'?",
    "block_size=0": "block_size: must be a power of two, not 0.",
    "block_size=-1": "block_size: must be a power of two, not -1.",
    "block_size=1000": "block_size: must be a power of two, not 1000.",
    "block_size=four": "block_size: must be a whole number, not 'four'.",
    "block_size=1.5": "block_size: must be a whole number, not 1.5.",
    "block_size=true": "block_size: must be a whole number, not True.",
    "block_size=[256,1000]": "block_size: must be a power of two, not 1000.",
    "num_warps=3": "num_warps: must be 1, 2, 4, 8, 16 or 32 (a block has 32 x num_warps threads), not 3.",
    "num_warps=64": "num_warps: must be 1, 2, 4, 8, 16 or 32 (a block has 32 x num_warps threads), not 64.",
    "num_stages=0": "num_stages: must be at least 1, not 0.",
    "size=0": "size: must be at least 1, not 0.",
    "size=-5": "size: must be at least 1, not -5.",
    "size=[]": "size: is empty; write a value or a list of values.",
    "rows=0": "rows: must be at least 1, not 0.",
    "rows=foo": "rows: must be a whole number, not 'foo'.",
    "rows=[37,1.5]": "rows: must be a whole number, not 1.5.",
    "device=cuda": "device=cuda is not there: no NVIDIA GPU or driver was found. Write device=auto",
    "device=gpu7": "device=gpu7 is not a device; write auto, cpu, cuda or cuda:N.",
    "device=[]": "device: is empty; write a value or a list of values.",
    "device=null": "device: is empty; write a value or a list of values.",
    "device=3": "device=3 is not a device; write auto, cpu, cuda or cuda:N.",
    "point_timeout_s=0": "point_timeout_s: input should be greater than 0, not 0.",
    "wait_s=-1": "wait_s: input should be greater than or equal to 0, not -1.",
    "seed=abc": "seed: input should be a valid integer",
    "remeasure=maybe": "remeasure: input should be a valid boolean",
    "block_size=[1,": "can't read 'block_size=[1,': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "block_size": "can't read 'block_size': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "seed=${nowhere}": "Interpolation key 'nowhere' not found",
    "kernel.name=nowhere": "kernel.name: unknown kernel 'nowhere'. Known: gelu, layernorm, rmsnorm, "
    "softmax, square.",
}


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mistakes on every machine, no lock that another sweep could hold, nothing written here."""
    monkeypatch.setattr(device, "gpus", list)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def sentence(options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says on stderr before it ends with 2."""
    monkeypatch.setattr(sys, "argv", ["sweep", *options])
    with pytest.raises(SystemExit) as ended:
        run_stage("sweep", SweepConfig, sweep.run)
    error = capsys.readouterr().err
    assert ended.value.code == 2, error
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    return error.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [] if mistake.startswith("kernel=") else ["kernel=softmax"]
    options += [] if mistake.startswith("device=") else ["device=cpu"]
    options += [] if mistake.startswith("tracking=") else ["tracking=none"]
    assert sentence([*options, mistake], monkeypatch, capsys).startswith(MISTAKES[mistake])
    assert list(Path().glob("outputs")) == [], "nothing is written for a mistake"


def test_a_missing_kernel_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence([], monkeypatch, capsys) == (
        "kernel is missing: write kernel=NAME with one of gelu, layernorm, rmsnorm, softmax, square."
    )


def test_several_mistakes_are_all_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(["kernel=softmax", "device=cpu", "size=0", "num_warps=3"], monkeypatch, capsys)
    assert "size: must be at least 1" in said
    assert "num_warps: must be 1, 2, 4" in said


def parsed(options: list[str], monkeypatch: pytest.MonkeyPatch) -> SweepConfig:
    """The configuration that the command line means."""
    seen: list[SweepConfig] = []
    monkeypatch.setattr(sys, "argv", ["sweep", "kernel=softmax", *options])
    with pytest.raises(SystemExit) as ended:
        run_stage("sweep", SweepConfig, seen.append)
    assert ended.value.code == 0
    (config,) = seen
    return config


def test_an_axis_takes_a_value_or_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(["block_size=[256,512]", "num_warps=8", "dtype=[float32,float16]"], monkeypatch)
    assert (config.block_size, config.num_warps, config.size) == ((256, 512), (8,), None)
    (values,) = config.grids()
    assert values["block_size"] == (256, 512)
    assert values["dtype"] == ("float32", "float16")
    assert values["size"] == config.kernel.grid["cpu"][0].size, "what is not pinned is the kernel's own grid"
    assert values["rows"] == (None,)


def test_a_preset_may_hold_several_grids_and_a_pin_holds_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *further = parsed(["preset=standard", "block_size=1024"], monkeypatch).grids()
    assert first["rows"] == (None,)
    assert [one["rows"] for one in further] == [(None,), (1, 37, 1823), (1, 37, 1823), (1, 16, 132)]
    assert {one["block_size"] for one in (first, *further)} == {(1024,)}
    every = parsed(["preset=standard", "rows=[37]"], monkeypatch).grids()
    assert [one["rows"] for one in every] == [(37,)] * 5
    (alone,) = parsed(["preset=standard", "size=4096"], monkeypatch).grids()
    assert (alone["size"], alone["rows"]) == ((4096,), (None,)), "the others are for their sizes"
    both = parsed(["preset=standard", "size=4096", "rows=37"], monkeypatch).grids()
    assert {(one["size"], one["rows"]) for one in both} == {((4096,), (37,))}


@pytest.mark.parametrize("kernel", ["softmax", "layernorm", "rmsnorm"])
def test_the_standard_sweep_of_a_row_kernel_has_few_rows_too(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    config = parsed(["preset=standard", f"kernel={kernel}"], monkeypatch)
    points = grid.expand(kernels.load(kernel), None, config.grids())
    shapes = {(point.rows, point.size) for point in points}
    assert {(None, 262144), (37, 12671), (132, 262144)} <= shapes
    assert len(shapes) == 11 + 3 * 2 + 3


def test_the_automatic_preset_is_the_devices_and_yields_to_options(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(["timing.min_samples=7", "seed=3"], monkeypatch)
    assert (config.preset.name, config.timing.max_seconds) == ("cpu", config.preset.max_seconds)
    assert (config.timing.min_samples, config.seed) == (7, 3)
    assert parsed(["preset=smoke"], monkeypatch).preset.name == "smoke"


def test_a_preset_that_the_kernel_has_no_grid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(["preset=smoke"], monkeypatch)
    unnamed = config.model_copy(update={"preset": config.preset.model_copy(update={"name": "huge"})})
    with pytest.raises(UserError, match=r"unknown preset of softmax 'huge'\. Known: smoke, cpu, standard\."):
        unnamed.grids()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["kernel=softmax", "tming.max_seconds=1"], "unknown option 'tming"),
        (["kernel=softmax", "device=cuda"], "device=cuda is not there: "),
        (["kernel=square", "device=cpu", "provider=nope"], "unknown provider of square 'nope'. Known: "),
        (
            ["kernel=square", "device=cpu", "rows=37"],
            "rows=37: the rows of square follow from its size; leave rows out and write size=37.",
        ),
    ],
)
def test_the_command_itself_says_it(options: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.sweep", "tracking=none", *options],
        cwd=HERE,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "preset/smoke.yaml",
            "max_seconds:",
            "max_secnds:",
            "unknown option 'preset.max_secnds'. Did you",
        ),
        ("kernel/softmax.yaml", "num_warps:", "num_wraps:", "unknown option 'kernel.grid.smoke.num_wraps'."),
        (
            "kernel/softmax.yaml",
            "rows: [1, 37",
            "rows: [0, 37",
            "kernel.grid.standard.rows: must be at least 1, not 0.",
        ),
        ("sweep.yaml", "seed: 0", "sed: 0", "unknown option 'sed'."),
        ("sweep.yaml", "seed: 0", "seed: [0", "can't read "),
    ],
)
def test_a_mistake_in_a_file_is_said_as_well(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    tree = Tree(tmp_path)
    path = tree.root / "conf" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    done = tree.sweep("kernel=softmax")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
