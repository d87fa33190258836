"""A mistake on the command line ends in one sentence on stderr that names the correct input."""

import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel_pipeline import loading
from kernel_pipeline.machine import device
from pipeline import sweep
from pipeline.command import explanation
from pipeline.command.options import SweepConfig
from pipeline.command.run import run_each, run_stage
from pipeline.points import catalog
from pipeline.points.plan import Plan, Target, plan
from tests.commands import exit_code
from tests.planted.tree import PLANTED, Tree
from tests.project import python

KNOWN = ", ".join(loading.names())

DIMENSIONS = (
    "Its dimensions: rows, columns, dtype (size stands for columns); "
    "its providers' parameters: num_warps, block_size, strategy, cluster_size, stages, threads."
)

MISTAKES = {
    "kernel=sofmax": f"unknown kernel 'sofmax'. Did you mean 'softmax'? Known: {KNOWN}.",
    "kernel=[]": "kernel: is empty; write a value or a list of values.",
    "provider=tritn_row": "unknown provider of softmax 'tritn_row'. Did you mean 'triton_row'? Known: ",
    "provider=1": "provider: input should be a valid string, not 1.",
    "provider=[]": "provider: is empty; write a value or a list of values.",
    "dtype=float64": "dtype: must be one of float32, bfloat16, float16, not float64.",
    "dtype=float32,fp16": "dtype: must be one of float32, bfloat16, float16, not fp16.",
    "preset=smke": "unknown preset 'smke'. Did you mean 'smoke'? "
    "Known: auto, broad, cpu, quick, smoke, standard.",
    "preset=smoke,cpu": "preset=smoke,cpu is several values: write one, or -m preset=smoke,cpu to run the ",
    "prest=smoke": "unknown option of softmax 'prest'. Did you mean 'preset'? " + DIMENSIONS,
    "blocksize=64": "unknown option of softmax 'blocksize'. Did you mean 'block_size'? " + DIMENSIONS,
    "block-size=64": "unknown option 'block-size'. Known: ",
    "timing.max_secnds=1": "unknown option 'timing.max_secnds'. Did you mean 'timing.max_seconds'? Known: ",
    "+timing.foo=1": "unknown option 'timing.foo'",
    "timing.max_seconds=0": "timing.max_seconds: input should be greater than 0, not 0.",
    "timing.timer=stopwatch": "timing.timer: input should be 'auto', 'graph', ",
    "timing=slow": "unknown timing 'slow'. Known: default.",
    "tracking=lokal": "unknown tracking 'lokal'. Did you mean 'local'?",
    "block_size=1000": "block_size: must be one of 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, not 1000.",
    "block_size=four": "block_size: must be a whole number, not 'four'.",
    "block_size=1.5": "block_size: must be a whole number, not 1.5.",
    "num_warps=3": "num_warps: must be one of 1, 2, 4, 8, 16, 32, not 3.",
    "size=0": "size: must be at least 1, not 0.",
    "size=[]": "size: is empty; write a value or a list of values.",
    "size=37,": "can't read 'size=37,': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "size=range(1,4)": "size=range(1,4) is several values: write one, or -m size=range(1,4) to run the",
    "size=99999999999999999999": "size: must be less than 2**63, not 99999999999999999999.",
    "size=\u0660b": "size: must be a whole number, not '\u0660b'.",
    "size=[1,": "can't read 'size=[1,': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "size=${nowhere}": "Interpolation key 'nowhere' not found",
    "rows=[37,1.5]": "rows: must be a whole number, not 1.5.",
    "search=tpe": "search: tpe needs a limit; write trials=N, seconds=N or both.",
    "search=best": "search: input should be 'exhaustive', 'random' or 'tpe', not 'best'.",
    "trials=9": "search: exhaustive measures every point; write search=tpe, or leave trials= out.",
    "device=cuda": "device=cuda is not there: no NVIDIA GPU or driver was found. Write device=auto",
    "device=gpu7": "device=gpu7 is not a device; write auto, cpu, cuda or cuda:N.",
    "device=[]": "device: is empty; write a value or a list of values.",
    "output=": "output: is empty; write a path, or leave it out.",
    "output=/etc/hostname": "no results can be written to /etc/hostname/timings/softmax: no folder can be "
    "made in /etc/hostname (it is a file); name another folder by output=.",
    "output=/proc/x": "no results can be written to /proc/x/timings/softmax: no folder can be ",
    "timing.timer=graph": "timing.timer=graph needs a GPU: a CPU is timed by the host's clock alone; leave ",
    "allow=incorect": "allow: input should be 'incorrect', 'compile_error', 'runtime_error', ",
    "pin={size:64}": "can't read 'pin={size:64}': write the kernel's own names as options, as in size=4096.",
    "=64": "can't read '=64': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "~seed": "seed can't be removed: leave ~seed out, or write seed=VALUE.",
    "~preset": "preset can't be removed: leave ~preset out, or write preset=VALUE.",
    "~timing.min_samples": "timing.min_samples can't be removed: leave ~timing.min_samples out, or write ",
    "~sed": "unknown option 'sed'. Did you mean 'seed'? Known: ",
    "--sizes": "unknown flag '--sizes': options are written NAME=VALUE, and --help lists them",
    "--cfg": "--cfg shows the configuration: write --cfg job.",
    "hydra.run.dir=here": "hydra.run.dir is a setting of Hydra's own, which no command ",
    "point_timeout_s=0": "point_timeout_s: input should be greater than 0, not 0.",
    "wait_s=-1": "wait_s: input should be greater than or equal to 0, not -1.",
    "seed=99999999999999999999": "seed: input should be less than 4294967296, not 99999999999999999999.",
    "seed=1,2": "seed=1,2 is several values: write one, or -m seed=1,2 to run the command once for each.",
    "remeasure=maybe": "remeasure: input should be a valid boolean",
    "block_size": "can't read 'block_size': write OPTION=VALUE or OPTION=[VALUE,VALUE].",
    "seed=${nowhere}": "Interpolation key 'nowhere' not found",
    "seed=1 seed=2": "seed is given twice, as seed=1 and as seed=2; write it once.",
    "size=37 +size=37": "size is given twice, as size=37 and as +size=37; write it once.",
    "~timing timing=default": "timing is given twice, as ~timing and as timing=default; write it once.",
    "search=tpe trials=4 debug=true": "search: tpe chooses by times, and debug=true measures no time; leave "
    "one of them out.",
    "size=[[1,2]]": "size: must be a whole number, not [1,2].",
    "provider=[torch,triton_row] block_size=1024": "block_size is not a parameter of torch, triton_row; "
    "triton_tile, triton_online, cuda of softmax have it.",
}
"""The options of each mistake, and how the sentence about it begins; one with a full stop is all of it."""


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Read each kernel's YAML once for all tests. A test that edits a YAML file does so before the first
    read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "find", cache(catalog.find))
        yield


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide GPUs so that mistakes are the same on every machine, and use a temporary folder for locks and
    files."""
    monkeypatch.setattr(device, "gpus", list)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs the command, which must exit with 2, and returns its message."""

    def said(*options: str) -> str:
        code = exit_code(run_each, "sweep", SweepConfig, sweep.run, *options)
        error = capsys.readouterr().err
        assert code == 2, error
        assert error.startswith("error: ")
        assert error.count("\n") == 1, error
        return error.removeprefix("error: ").rstrip("\n")

    return said


Sentence = Callable[..., str]


def test_a_mistake_is_said_before_the_device_is_waited_for(
    sentence: Sentence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "DeviceLock", lambda *arguments: pytest.fail("it waits for the device"))
    options = ["kernel=gelu,softmax", "device=cpu", "tracking=none", "block_size=1000"]
    assert sentence(*options).startswith("block_size: must be one of 256, 512, ")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(sentence: Sentence, mistake: str) -> None:
    options = [] if mistake.startswith("kernel=") else ["kernel=softmax"]
    options += [] if mistake.startswith("device=") else ["device=cpu"]
    options += [] if mistake.startswith("tracking=") else ["tracking=none"]
    said, expected = sentence(*options, *mistake.split()), MISTAKES[mistake]
    assert said == expected if expected.endswith(".") else said.startswith(expected)
    assert list(Path().glob("outputs")) == [], "nothing is written for a mistake"


@pytest.mark.parametrize("mistake", ["kernel=../softmax", "kernel=./nowhere/"])
def test_a_folder_without_a_kernel_is_said(sentence: Sentence, mistake: str, tmp_path: Path) -> None:
    place = (tmp_path / mistake.removeprefix("kernel=")).resolve() / "__init__.py"
    said = sentence(mistake, "device=cpu", "tracking=none")
    assert said.startswith(f"{mistake}: {place} does not exist; a kernel's folder needs it.")
    assert said.endswith(" The kernel softmax of this repository is kernel=softmax.") == (
        "softmax" in mistake
    )


NAMES = st.sampled_from(
    [
        *("size", "rows", "dtype", "block_size", "provider", "preset", "timing", "timing.timer", "kernel"),
        *("timing.max_seconds", "device", "output", "seed", "retry", "allow", "wait_s", "tracking", "pin"),
        *(
            "tracking.uri",
            "+pin.size",
            "~timing",
            "~pin",
            "++seed",
            "-m",
            "--help=",
            "experiment",
            "preset@x",
        ),
        *("preset@x", "hydra.job", "", "-", "~", "+"),
    ]
)
VALUES = st.one_of(
    st.sampled_from(["", "1", "-1", "1e400", "nan", "null", "true", "a,b", "1,2", "[1", "[]", "{a:1}", "'"]),
    st.sampled_from(["${seed}", "${", "$(x)", "range(1,3)", "range(1,0)", "a b", "../x", "/", "\\", '"']),
    st.sampled_from(["9" * 30, "ä", "[ä]", "\n"]),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=6),
)


@settings(max_examples=80, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(st.tuples(NAMES, st.sampled_from(["=", ""]), VALUES), min_size=1, max_size=3))
def test_whatever_is_written_ends_well_or_in_a_sentence(written: list[tuple[str, str, str]]) -> None:
    def run(configs: Sequence[SweepConfig]) -> None:
        for config in configs:
            plan(config.entry, config.preset.name, Target("cpu"), config.pin, config.provider)

    words = ["".join(parts) for parts in written]
    out, err = io.StringIO(), io.StringIO()
    fixed = ("kernel=square", "device=cpu", "preset=smoke")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code(run_each, "sweep", SweepConfig, run, *fixed, *words)
    said = err.getvalue()
    assert code in (0, 2), words
    assert (code == 0) == (said == ""), words
    assert said.count("\n") == said.count("error: ") == (code == 2), (words, said)


def test_a_missing_kernel_is_asked_for(sentence: Sentence) -> None:
    assert sentence() == f"kernel is missing: write kernel=NAME with one of {KNOWN}."
    assert sentence("size=64") == sentence()
    assert sentence("kernl=softmax").startswith(
        "unknown option 'kernl'. Did you mean 'kernel'? Known: kernel,"
    )


def test_several_mistakes_are_all_named(sentence: Sentence) -> None:
    pins = sentence("kernel=softmax", "device=cpu", "size=0", "num_warps=3")
    assert pins == "size: must be at least 1, not 0. num_warps: must be one of 1, 2, 4, 8, 16, 32, not 3."
    options = ["kernel=softmax", "device=cpu", "seed=a", "size=[[a]]", "wait_s=-1"]
    said = sentence(*options)
    assert said.count("size: write a value or a list of values, not ['a'], for") == 1
    assert said.count("size: ") == 1
    assert "seed: input should be a valid integer" in said
    assert "wait_s: input should be greater than or equal to 0" in said


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return the folder of a kernel outside the repository with words and flags among its dimensions and
    parameters."""
    shutil.copytree(PLANTED / "prefix", tmp_path / "prefix", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PLANTED / "prefix.yaml", tmp_path / "prefix" / "kernel.yaml")
    return tmp_path / "prefix"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("causal=maybe", "causal: must be true or false, not 'maybe'."),
        ("mode=max", "mode: must be one of sum, mean, not max."),
        ("strategy=prodct", "strategy: must be one of scan, product, not prodct."),
        ("reverse=2", "reverse: must be true or false, not 2."),
        ("reversed=true", "unknown option of prefix 'reversed'. Did you mean 'reverse'?"),
        ("preset=cpu", "unknown preset of prefix 'cpu'. Known: smoke, standard."),
    ],
)
def test_a_wrong_word_or_flag_is_said(sentence: Sentence, outside: Path, mistake: str, said: str) -> None:
    options = [f"kernel={outside}", "device=cpu", mistake]
    options += [] if mistake.startswith("preset=") else ["preset=smoke"]
    assert sentence(*options).startswith(said)


def parsed(options: list[str]) -> SweepConfig:
    """Return the configuration of a command line."""
    seen: list[SweepConfig] = []
    kernel = [] if any(option.startswith("kernel=") for option in options) else ["kernel=softmax"]
    assert exit_code(run_stage, "sweep", SweepConfig, seen.append, *kernel, *options) == 0
    (config,) = seen
    return config


def planned(options: list[str]) -> Plan:
    """Return the plan of a command line, for a GPU that every provider supports."""
    config = parsed(options)
    return plan(config.entry, config.preset.name, Target("cuda"), config.pin, config.provider)


def test_a_pin_takes_a_value_or_a_list() -> None:
    options = ["preset=quick", "block_size=[256,512]", "num_warps=8", "dtype=float32,float16"]
    config = parsed(options)
    assert config.pin == {"block_size": (256, 512), "num_warps": (8,), "dtype": ("float32", "float16")}
    points = planned([*options, "provider=cuda"]).points
    found = {name: {point.parameters[name] for point in points} for name in ("block_size", "num_warps")}
    assert found == {"block_size": {256, 512}, "num_warps": {8}}
    assert {point.problem["dtype"] for point in points} == {"float32", "float16"}
    assert {point.problem["columns"] for point in points} == {1024, 16384}, "not pinned"
    assert {point.problem["rows"] for point in points} == {4096}


def test_the_automatic_preset_is_the_devices_and_yields_to_options() -> None:
    config = parsed(["timing.min_samples=7", "seed=3"])
    assert (config.preset.name, config.timing.max_seconds) == ("cpu", config.preset.max_seconds)
    assert (config.timing.min_samples, config.seed) == (7, 3)
    assert parsed(["preset=smoke"]).preset.name == "smoke"


def test_help_of_an_outside_kernel_lists_its_flags_and_an_unknown_one_is_said(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        explanation.show("sweep", ["-h", f"kernel={outside}"])
    lines = capsys.readouterr().out.splitlines()
    assert (
        "  causal= false true (default false)" in lines and "    reverse= false true (default false)" in lines
    )
    with pytest.raises(SystemExit, match="2"):
        explanation.show("sweep", ["--help", "kernel=sofmax"])
    assert capsys.readouterr().err.startswith("error: unknown kernel 'sofmax'. Did you mean 'softmax'?")


def test_a_multirun_runs_the_command_for_each_with_its_pins(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SweepConfig] = []

    def run(*words: str) -> list[tuple[str, dict[str, tuple[object, ...]]]]:
        seen.clear()
        # The flag -m may stand anywhere among the options.
        words = ("preset=smoke", *words[:1], "-m", *words[1:], "device=cpu")
        monkeypatch.setattr(sys, "argv", ["sweep", *words])
        with pytest.raises(SystemExit) as ended:
            run_stage("sweep", SweepConfig, seen.append)
        assert ended.value.code == 0
        assert sys.argv[1:] == [*words], "what rows say of their command"
        return [(config.entry.name, config.pin) for config in seen]

    both = run("kernel=softmax,square", "block_size=1024")
    assert both == [("softmax", {"block_size": (1024,)}), ("square", {"block_size": (1024,)})]
    assert run("kernel=softmax", "size=37,64") == [("softmax", {"size": (37,)}), ("softmax", {"size": (64,)})]
    assert [path.name for path in Path().iterdir() if path.name != "prefix"] == [], "Hydra leaves no file"
    outside_too = run(f"kernel={outside},softmax", "dtype=float32")
    assert outside_too == [("prefix", {"dtype": ("float32",)}), ("softmax", {"dtype": ("float32",)})]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["kernel=softmax", "device=cuda"], "device=cuda is not there: "),
        # An option that only the first kernel accepts is reported before anything is measured.
        (
            ["kernel=square,matmul", "device=cpu", "preset=smoke", "block_size=1024"],
            "unknown option of matmul 'block_size'",
        ),
    ],
)
def test_the_command_itself_says_it(options: list[str], said: str) -> None:
    assert said_by("sweep", "tracking=none", *options).startswith(said)


def test_a_command_without_kernels_says_so_of_several() -> None:
    assert said_by("environment", "device=cpu", "kernel=gelu,square").startswith("unknown option 'kernel'")


def said_by(command: str, *options: str) -> str:
    """Run the command, which must exit with 2 and print nothing but one sentence. Return the sentence."""
    done = python("-m", f"pipeline.{command}", *options, CUDA_VISIBLE_DEVICES="", TMPDIR=str(Path.cwd()))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr.removeprefix("error: ")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("preset/smoke.yaml", "max_seconds:", "max_secnds:", "unknown option 'preset.max_secnds'. Did you"),
        (
            "kernel/base/rows.yaml",
            "num_warps: [4]",
            "num_wraps: [4]",
            "conf/kernel/softmax.yaml: preset smoke: unknown parameter 'num_wraps'. Did you mean",
        ),
        ("sweep.yaml", "seed: 0", "sed: 0", "unknown option 'sed'."),
        ("timing/default.yaml", "timer: auto", "timer: @auto", "timing/default.yaml, line 1: found char"),
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
