"""Help: every command says what it does, shows its usage, and describes each option."""

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from kernel_pipeline.machine import device
from pipeline import ROOT, sweep
from pipeline.__main__ import main
from pipeline.command import explanation
from pipeline.command.options import SweepConfig
from pipeline.command.run import run_each
from pipeline.command.words import CONF
from pipeline.points import catalog, plan
from pipeline.points.plan import Target
from tests.commands import exit_code
from tests.processes import completed
from tests.project import python

COMMANDS = sorted(explanation.commands())
CONFIGURED = [name for name in COMMANDS if name != "repro"]


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Read each command's docstring and each kernel's YAML once, because no test of this file changes
    them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explanation, "docstring", cache(explanation.docstring))
        patch.setattr(catalog, "find", cache(catalog.find))
        yield


def conf_of(name: str) -> Path:
    return CONF / f"{explanation.BORROWED.get(name, name)}.yaml"


@pytest.mark.parametrize("name", CONFIGURED)
def test_every_option_has_a_meaning_and_is_in_the_help(name: str) -> None:
    conf, schema = conf_of(name), explanation.schema_of(name)
    found = {option.name: option for option in explanation.of_file(conf)}
    groups = {group.name: group for group in explanation.groups(conf)}
    assert set(found) == set(yaml.safe_load(conf.read_text())) - {"defaults"}
    told = set(schema.model_fields)
    assert set(found) | set(groups) == told | (set(groups) & {"experiment"})
    text = " ".join(explanation.of_command(name).split())
    for option in found.values():
        assert option.meaning or option.before, f"{conf}: say behind {option.name} what it means"
        assert " ".join((option.meaning or option.before).split()) in text
    for group in groups.values():
        assert group.meaning, f"{conf}: say behind {group.name} what it is"


@pytest.mark.parametrize("group", ["timing/default", "tracking/local", "tracking/none", "tracking/server"])
def test_every_option_of_a_group_has_a_meaning(group: str) -> None:
    options = explanation.of_file(CONF / f"{group}.yaml")
    assert [option.name for option in options if not option.meaning and option.name != "name"] == []
    assert len(options) == len(yaml.safe_load((CONF / f"{group}.yaml").read_text()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_three_examples_of_options_that_it_has(name: str) -> None:
    lines = explanation.examples(name)
    assert len(lines) >= 3
    for words in (line.split()[3:] for line in lines if name in CONFIGURED):
        given = [word.split("=")[0] for word in words if "=" in word]
        schema = explanation.schema_of(name)
        known = set(schema.model_fields) | {"experiment"}
        kernel = next((word.split("=")[1] for word in words if word.startswith("kernel=")), "")
        if "pin" in schema.model_fields and kernel in explanation.choices("kernel"):
            known |= set(plan.names(catalog.find(kernel)))
        assert set(given) <= known, name


ABOUT_KERNELS = [
    *("accuracy", "benchmarks", "build", "codegen", "compare"),
    *("counters", "finals", "heldout", "profile", "publish", "results", "sanitize", "sweep"),
    *("tune", "ui", "verify"),
]


def test_the_commands_about_kernels_are_those_with_the_option() -> None:
    with_option = {name for name in CONFIGURED if "kernel" in explanation.schema_of(name).model_fields}
    assert set(ABOUT_KERNELS) == with_option - set(explanation.WITHOUT_KERNEL)


@pytest.mark.parametrize("name", ABOUT_KERNELS)
def test_help_of_every_command_about_kernels_lists_what_a_kernel_takes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            explanation.show(name, ["--help", *words])
        assert ended.value.code == 0
        return capsys.readouterr().out

    hint = f"`python -m pipeline.{name} --help kernel=NAME` lists a kernel's dimensions and parameters."
    for words in ((), ("kernel=null",), ("kernel=all",)):
        assert hint in shown(*words)
    text = shown("kernel=matmul")
    assert hint not in text
    for line in (
        "  m= a whole number from 1 on",
        "  arithmetic= ieee tf32 fast_accum (default ieee)",
        "  cuda_tiled (cuda, cuda)",
        "    tile= 16 32 (default 32)",
    ):
        assert line in text.splitlines(), line
    are_options = "pin" in explanation.schema_of(name).model_fields
    assert are_options != ("takes none of the dimensions and parameters below as options." in text)
    both = shown("kernel=[matmul,softmax]")
    assert both == shown("kernel=matmul,softmax")
    assert "\nmatmul: " in both and "\nsoftmax: " in both


@pytest.mark.parametrize("command", [("pipeline.build",), ("pipeline", "new")])
def test_a_command_without_what_it_needs_prints_its_help_and_says_so(command: tuple[str, ...]) -> None:
    done = python("-m", *command)
    name = command[-1].removeprefix("pipeline.")
    assert done.stdout == f"{explanation.of_command(name)}\n"
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "is missing" in done.stderr


@pytest.mark.parametrize("words", ["pipeline", "pipeline.sweep --help kernel=softmax"])
def test_who_reads_the_first_line_alone_sees_no_traceback(words: str) -> None:
    line = f"{sys.executable} -m {words} | head -n 1 >/dev/null"
    done = completed(["bash", "-c", line], cwd=ROOT, check=True)
    assert done.stderr == ""


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kernel-pipeline"])
    main()
    listed = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [words[0] for words in listed] == COMMANDS
    assert all(len(words) > 3 for words in listed)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write the console script as pip does. Return its path."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["kernel-pipeline"]
    module, _, function = entry.partition(":")
    path = tmp_path / "kernel-pipeline"
    path.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
    path.chmod(0o755)
    return path


def test_the_console_script_takes_the_same_words(script: Path) -> None:
    path = {"PYTHONPATH": str(ROOT)}
    done = python(str(script), "sweep", "kernel=softmax", "device=cpu", "size=0", **path)
    assert (done.returncode, done.stderr) == (2, "error: size: must be at least 1, not 0.\n")
    done = python(str(script), "swep", **path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown command 'swep'. Did you mean 'sweep'? Known: ")
    done = python(str(script), "gelu", "--help", **path)
    assert done.stderr.startswith("error: unknown command 'gelu'.")


COMPLETE = """
eval "$(kernel-pipeline -sc install=bash)"
complete -p kernel-pipeline | grep -o "hydra.*"
while read -r COMP_LINE; do
    read -ra COMP_WORDS <<<"$COMP_LINE"
    COMP_POINT=${#COMP_LINE} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    hydra_bash_completion
    echo "${COMPREPLY[*]}"
done
"""


def test_a_shell_completes_commands_options_presets_and_experiments(script: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    lines = ("sw", "sweep kernel=softmax preset=s", "sweep experiment=first", "be", "results gp")
    done = completed(
        [bash, "-c", COMPLETE],
        input="".join(f"kernel-pipeline {line}\n" for line in lines),
        env=os.environ | {"PATH": f"{script.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines() == [
        "hydra_bash_completion kernel-pipeline",
        "sweep",
        "preset=smoke preset=standard",
        "experiment=first_look",
        "benchmarks",
        "gpu=",
    ], done.stderr


EXPERIMENTS = explanation.choices("experiment")


def swept(words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[list[SweepConfig]]:
    """Return the configurations of a sweep with these options: a list for each run."""
    seen: list[list[SweepConfig]] = []
    monkeypatch.setattr(device, "gpus", list)
    code = exit_code(run_each, "sweep", SweepConfig, lambda configs: seen.append(list(configs)), *words)
    assert code == 0
    return seen


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_pins_what_is_measured_and_a_page_tells_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((*configs,),) = swept([f"experiment={name}"], monkeypatch)
    for config in configs:
        target = Target("cuda")
        points = plan.plan(config.entry, config.preset.name, target, config.pin, config.provider).points
        assert 0 < len(points) < 500
        assert config.preset.name in ("cpu", "quick"), "an experiment names its preset"
        pinned = {*config.pin} - {"size"}
        assert all({point.problem[pin] for point in points} == {*config.pin[pin]} for pin in pinned)
    assert f"`{name}`" in (ROOT / "docs" / "sweeps.md").read_text()


def test_experiments_and_kernels_run_one_after_another_and_yield_to_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = swept(["experiment=first_look,llm_hidden_norms", "preset=smoke", "dtype=float16"], monkeypatch)
    assert [[config.entry.name for config in configs] for configs in runs] == [
        ["square"],
        ["layernorm", "rmsnorm"],
    ]
    assert {config.preset.name for configs in runs for config in configs} == {"smoke"}
    assert runs[0][0].pin == {"size": (256, 1024), "dtype": ("float16",)}
    assert runs[1][1].pin["dtype"] == ("float16",) and "size" not in runs[1][1].pin
    ((config,),) = swept(["experiment=first_look", "kernel=softmax", "size=37"], monkeypatch)
    assert (config.entry.name, config.pin["size"]) == ("softmax", (37,))


@pytest.mark.parametrize(
    "words", [["experiment=first_look,llm_mlp_gelu"], ["-m", "kernel=square", "preset=smoke,cpu"]]
)
def test_a_failure_of_one_does_not_keep_the_others_from_being_run(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def fails(configs: object) -> None:
        seen.append(configs)
        raise sweep.UnsuccessfulError(f"number {len(seen)} failed.")

    monkeypatch.setattr(device, "gpus", list)
    assert (exit_code(run_each, "sweep", SweepConfig, fails, *words), len(seen)) == (1, 2)
    assert capsys.readouterr().err == "error: number 1 failed.\nnumber 2 failed.\n"
