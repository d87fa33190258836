"""What holds for the repository as a whole."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]

# Split, so that this file does not hold what it looks for.
NOT_HERE = {
    "a folder of one machine": r"(?<![\w.~}])/(?:work|root|home/\w+|Users/\w+|opt/(?:wheels|pypi))(?![\w-])",
    "a package index": r"(?:pypi|pythonhosted|download\.pytorch)\.(?:or" + r"g)(?:/simple|/whl|/packages)",
    "an option that names a package index": r"^\s*--(?:extra-)?(?:index-url|find-links)[ =]",
}


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the repository has no git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("what", NOT_HERE)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(NOT_HERE[what], re.MULTILINE)
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert not found


def test_constraints_pin_every_package_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.match(r"[a-z0-9][a-z0-9-]*==[\w.]+( ; .+)?$", line)] == []


@pytest.mark.parametrize("name", ["gpu", "server"])
def test_an_images_lock_holds_the_same_pins_each_with_its_hashes(name: str) -> None:
    pinned = {
        re.match(r"\S+", line)[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()  # type: ignore[index]
    }
    entries = re.split(r"\n(?=\S)", (ROOT / "docker" / f"{name}.lock").read_text().strip())
    for entry in entries:
        pin, *hashes = entry.replace("\\\n", "\n").split("\n")
        assert pin.split()[0] in pinned
        assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64} *", line) for line in hashes)


def test_every_kernel_has_a_configuration_and_every_configuration_a_kernel() -> None:
    configured = sorted(path.stem for path in (ROOT / "conf" / "kernel").glob("*.yaml"))
    kernels = sorted(path.parent.name for path in (ROOT / "kernels").glob("*/__init__.py"))
    assert configured == kernels


def test_a_stage_runs_again_when_its_own_module_or_options_change() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        module = re.match(r"python -m pipeline\.(\w+)", stage["cmd"])
        assert module and module[1] == name, "a stage is named as its module"
        own = {f"pipeline/{name}.py", f"conf/{name}.yaml"}
        assert stage.get("always_changed") or own <= set(stage["deps"]), name


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``make`` as from a shell: the tests themselves may run under make and inherit its variables."""
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with what make reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_help_lists_every_target_and_variable() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)", makefile, re.MULTILINE)
    assert phony
    targets = set(phony[1].replace("\\\n", " ").split()) - {"python-on-path"}
    done = make(ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(re.findall(r"^  ([a-z-]+) {2,}\S", done.stdout, re.MULTILINE)) == targets
    variables = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    assert variables <= set(re.findall(r"^  ([A-Z]+)=", done.stdout, re.MULTILINE))


def test_without_a_venv_python_means_the_one_that_was_named(copy: Path) -> None:
    """dvc.yaml's commands say ``python``; a host may have ``python3`` alone."""
    python = program(copy / "my-python", 'echo "$@"')
    result = make(copy, "repro", "VENV=", f"PYTHON={python}", "ARGS=--dry")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:2] == ["-m dvc repro --dry", "-m pipeline.report"]


def test_a_failed_repro_fails_make_and_prints_no_table(copy: Path) -> None:
    python = program(copy / "my-python", 'echo "$@"; exit 3')
    result = make(copy, "repro", "VENV=", f"PYTHON={python}")
    assert result.returncode != 0
    assert result.stdout.splitlines() == ["-m dvc repro"]


def test_setup_installs_once_and_again_when_the_lock_changed(copy: Path) -> None:
    """With a Python whose venv and pip only write down that they were called."""
    fake = """[ "$*" = "-m venv --clear .venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *"pip install"*) echo "$@" >>installed ;; esac"""
    python = program(copy / "my-python", fake)
    calls = copy / "installed"
    command = ("setup", f"PYTHON={python}")
    assert make(copy, *command).returncode == 0
    assert make(copy, *command).returncode == 0
    assert calls.read_text() == "-m pip install --constraint constraints.txt --editable .[dev]\n"
    with (copy / "constraints.txt").open("a") as lock:
        lock.write("one-more==1.0\n")
    assert make(copy, *command).returncode == 0
    assert len(calls.read_text().splitlines()) == 2


def test_an_interrupted_setup_is_done_again(copy: Path) -> None:
    fake = """[ "$*" = "-m venv --clear .venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *"pip install"*) echo "$@" >>installed; [ -e network ] ;; esac"""
    command = ("setup", f"PYTHON={program(copy / 'my-python', fake)}")
    assert make(copy, *command).returncode != 0
    (copy / "network").touch()
    assert make(copy, *command).returncode == 0
    assert len((copy / "installed").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (None, "my-python is not there: install Python 3.11-3.13"),
        ("exit 1", "my-python is not Python 3.11-3.13"),
        ('case "$*" in *ensurepip*) exit 1 ;; esac', "my-python has no venv module"),
    ],
)
def test_setup_says_what_is_wrong_with_python(copy: Path, script: str | None, sentence: str) -> None:
    python = copy / "my-python"
    if script is not None:
        program(python, script)
    result = make(copy, "setup", f"PYTHON={python}")
    assert result.returncode != 0
    assert f"error: {copy}/{sentence}" in result.stderr
    assert not (copy / ".venv").exists()


def test_dockerfiles_are_clean() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    files = sorted((ROOT / "docker").glob("*.Dockerfile"))
    assert len(files) == 3
    result = subprocess.run([hadolint, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_scripts_are_clean() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    result = subprocess.run(
        [shellcheck, ".ci/run", "docker/run", "docker/serve", "docker/server-entrypoint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
