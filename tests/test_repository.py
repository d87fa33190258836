"""Rules for the repository as a whole."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import yaml

from kernel_pipeline import loading
from pipeline.store import results
from tests.processes import completed
from tests.project import python

ROOT = Path(__file__).parents[1]

# One pattern is split in two strings, so that this file does not match it.
NOT_HERE = {
    "a folder of one machine": r"(?<![\w.~}])/(?:work|root|home/\w+|Users/\w+|opt/(?:wheels|pypi))(?![\w-])",
    "a package index": r"(?:pypi|pythonhosted|download\.pytorch)\.(?:or" + r"g)(?:/simple|/whl|/packages)",
    "an option that names a package index": r"^\s*--(?:extra-)?(?:index-url|find-links)[ =]",
}


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy of the repository has no git")
    listed = completed(["git", "ls-files", "-z"], cwd=ROOT, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_holds_a_machines_folder_or_a_package_index() -> None:
    patterns = [re.compile(pattern, re.MULTILINE) for pattern in NOT_HERE.values()]
    suspicious = re.compile(
        "/(?:work|root|home/|Users/|opt/)|pypi|pythonhosted|download.pytorch|--(?:extra|index|find)"
    )
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if suspicious.search(text):
            some = [match[0] for pattern in patterns for match in pattern.finditer(text)]
            found += [f"{path.relative_to(ROOT)}: {one}" for one in some]
    assert not found


def test_constraints_pin_every_package_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.match(r"[a-z0-9][a-z0-9-]*==[\w.]+( ; .+)?$", line)] == []


def pinned(path: Path) -> set[str]:
    """Return the pins of a lock, without their markers."""
    return set(re.findall(r"(?m)^[a-z0-9-]+==[^\s;]+", path.read_text()))


def test_the_locks_hold_the_constraints_pins_each_with_its_hashes() -> None:
    pins, held = pinned(ROOT / "constraints.txt"), set()
    for lock in (ROOT / "locks").glob("*.lock"):
        for entry in re.split(r"\n(?=\S)", lock.read_text().strip()):
            _, *hashes = entry.replace("\\\n", "\n").split("\n")
            assert hashes and all(
                re.fullmatch(r"    --hash=sha256:[0-9a-f]{64} *", line) for line in hashes
            ), lock
        held |= pinned(lock)
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    assert held == pins | {f"{torch}+cpu"}


def test_no_package_is_in_two_locks_that_are_installed_together_but_those_the_compiler_shares() -> None:
    runtime, dev, torch, nvcc, numba = (
        pinned(ROOT / "locks" / f"{name}.lock") for name in ("runtime", "dev", "torch-cuda", "nvcc", "numba")
    )
    assert not runtime & dev and not runtime & torch and not dev & torch
    assert {pin.partition("==")[0] for pin in nvcc & (runtime | dev | torch)} <= {
        "cuda-toolkit",
        "nvidia-cuda-runtime",
    }
    # The lock numba repeats packages that may be missing: torch's CPU build has no CUDA bindings, and a host
    # with its own compiler does not install the lock nvcc.
    assert {pin.partition("==")[0] for pin in numba & (runtime | dev | torch | nvcc)} <= {
        "cuda-bindings",
        "cuda-pathfinder",
        "nvidia-cuda-cccl",
        "nvidia-nvvm",
    }


def test_base_images_are_named_by_digest_or_a_comment_says_why_not() -> None:
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        (base,) = re.findall(r"(?m)^ARG BASE_IMAGE=(.+)$", path.read_text())
        assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", base), path
    compose = (ROOT / "docker" / "compose.yaml").read_text()
    for before, image in re.findall(r"(.*)\n +image: (.+)", compose):
        assert "@sha256:" in image or image.startswith("kernel-pipeline:") or "By its tag alone" in before


def test_pin_writes_what_the_registry_says_today(tmp_path: Path) -> None:
    (docker := tmp_path / "docker").mkdir()
    for path in [
        *(ROOT / "docker").glob("*.Dockerfile"),
        *(ROOT / "docker" / n for n in ("compose.yaml", "pin")),
    ]:
        shutil.copy(path, docker)
    skopeo = program(tmp_path / "skopeo", 'printf %s "the manifest of $3"')
    done = completed([docker / "pin"], env={"PATH": f"{skopeo.parent}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    for name, image in (
        ("cpu.Dockerfile", "python:3.12.13-slim-bookworm"),
        ("gpu.Dockerfile", "nvidia/cuda:13.0.3-base-ubuntu24.04"),
        ("compose.yaml", "postgres:15.14-bookworm"),
    ):
        digest = hashlib.sha256(f"the manifest of docker://{image}".encode()).hexdigest()
        assert f"{image}@sha256:{digest}\n" in (docker / name).read_text()
        assert f"{name}: {image}@sha256:{digest}" in done.stdout.splitlines()
    assert "image: kernel-pipeline:server\n" in (docker / "compose.yaml").read_text()
    before = {path.name: path.read_bytes() for path in docker.iterdir()}
    program(skopeo, "exit 1")
    failed = completed([docker / "pin"], env={"PATH": f"{skopeo.parent}:/usr/bin:/bin"})
    assert failed.returncode == 1 and "the registry does not tell what" in failed.stderr
    assert before == {path.name: path.read_bytes() for path in docker.iterdir()}


def test_every_kernel_has_a_configuration_and_every_configuration_a_kernel() -> None:
    configured = sorted(path.stem for path in (ROOT / "conf" / "kernel").glob("*.yaml"))
    assert configured == loading.names()


def test_a_stage_runs_again_when_its_own_module_or_options_change() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        first = stage["cmd"] if isinstance(stage["cmd"], str) else stage["cmd"][0]
        module = re.match(r"pipeline/python -m pipeline\.(\w+)", first)
        assert module and module[1] == name, "a stage is named as its module"
        own = {f"pipeline/{name}.py", f"conf/{name}.yaml"}
        assert stage.get("always_changed") or own <= set(stage["deps"]), name


def test_every_stage_but_the_first_is_in_dvcs_run_cache_with_what_it_writes() -> None:
    """DVC skips a stage if its output is unchanged after the stage ran again. After an edit and its
    revert, a stage would then count as done although its files hold results of the edit. So each stage
    depends on the files that it writes."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    written = {"sweep": "timings", "tune": "tuned"}
    for name, stage in stages.items():
        if name == "environment":
            continue
        assert stage["outs"] == [f"build/{name}.done"]
        kind = written.get(name, name)
        own = {"report": "reports", "publish": "published"}.get(name, f"results/{kind}")
        assert {own, f"local/{own}"} - {"published"} <= set(stage["deps"]), name
        assert all(f"local/{dep}" in stage["deps"] for dep in stage["deps"] if dep in RESULTS), name


RESULTS = {f"results/{kind}" for kind in results.KINDS if kind != "environment"} | {"results", "reports"}


def test_what_kernels_share_is_a_dependency_of_every_stage_that_runs_them() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name in ("sweep", "finals", "profile", "counters", "codegen"):
        assert {"kernels", "conf/kernel"} <= set(stages[name]["deps"]), name
        assert "build/kernels" not in stages[name]["deps"], "each builds what it needs itself"
    assert "results/build" in stages["codegen"]["deps"], "which says of a clone's libraries what they are of"


def test_a_sweep_depends_on_no_package_that_explains_or_shows() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name in ("environment", "build", "sweep"):
        deps = set(stages[name].get("deps", ()))
        assert not deps & {"pipeline", "pipeline/inspection", "pipeline/reporting"}, name


@pytest.mark.parametrize(
    "name", ["sweep", "finals", "profile", "counters", "codegen", "tune", "report", "publish"]
)
def test_a_stage_depends_on_what_it_measures_and_keeps_results_by(name: str) -> None:
    """A stage depends on each module that it reaches in the packages whose code decides the content of
    files."""
    stage = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][name]
    missing = {
        file
        for file in reached(f"pipeline/{name}.py")
        if file.startswith(tuple(f"pipeline/{one}/" for one in ("execution", "keys", "points", "store")))
        and not file.endswith("__init__.py")
        and not any(file == dep or file.startswith(f"{dep}/") for dep in stage["deps"])
    }
    assert missing == set()


def test_what_processes_take_turns_by_is_in_neither_git_nor_dvc() -> None:
    lock = "results/timings/softmax/.nvidia-h200.jsonl.lock"
    assert ".*.jsonl.lock" in (ROOT / ".dvcignore").read_text().splitlines()
    if (ROOT / ".git").exists():
        done = subprocess.run(["git", "check-ignore", "--quiet", lock], cwd=ROOT, check=False)
        assert done.returncode == 0


LAYERS = (
    {"commands"},
    {"sweeping", "comparing"},
    {"command"},
    {"tracking"},
    {"reporting", "inspection"},
    {"verdicts", "cluster"},
    {"execution"},
    {"keys", "points"},
    {"store"},
)
"""The packages of pipeline/. Each level imports only from the levels below. "commands" are the modules at
its top."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield every Python file below a folder of the repository."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, parsed(path)


def test_no_module_is_too_long_to_be_read_in_one_sitting() -> None:
    lines = {
        path: path.read_text().count("\n")
        for folder in ("pipeline", "kernel_pipeline")
        for path, _ in modules(folder)
    }
    assert {str(path): count for path, count in lines.items() if count > 400} == {}


def imported(path: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the full names that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(ROOT).parts[: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def imported_by(path: Path) -> tuple[str, ...]:
    return tuple(imported(path, parsed(path)))


def reached(file: str) -> set[str]:
    """Return the files of the repository that a module imports, directly or indirectly."""
    found: set[str] = set()
    waiting = [file]
    while waiting:
        one = waiting.pop()
        found.add(one)
        names = [name.replace(".", "/") for name in imported_by(ROOT / one)]
        # The name is a module, or an object in a module.
        paths = {f"{place}.py" for name in names for place in (name, name.rpartition("/")[0])}
        waiting += [path for path in paths - found if (ROOT / path).is_file()]
    return found


def test_imports_of_the_pipelines_packages_only_go_down() -> None:
    level = {package: number for number, packages in enumerate(LAYERS) for package in packages}
    packages = {path.parent.name for path in (ROOT / "pipeline").glob("*/__init__.py")}
    assert packages == level.keys() - {"commands"}
    stages = {path.stem for path in (ROOT / "pipeline").glob("[a-z]*.py")}
    up = []
    for path, tree in modules("pipeline"):
        parts = path.relative_to(ROOT / "pipeline").parts
        mine = parts[0] if len(parts) > 1 else "commands"
        for name in imported(path, tree):
            package, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if package != "pipeline" or target not in packages | stages or target == mine:
                continue
            other = target if target in packages else "commands"
            if level[other] <= level[mine]:
                up.append((str(path.relative_to(ROOT)), target))
    # pipeline.ui publishes while it serves, so that the store becomes complete.
    assert set(up) == {("pipeline/ui.py", "publish")}


def test_imports_of_the_librarys_parts_make_no_circle() -> None:
    """The parts are the packages and modules at the top of the library."""
    root = ROOT / "kernel_pipeline"
    arrows: dict[str, set[str]] = {}
    for path, tree in modules("kernel_pipeline"):
        mine = path.relative_to(root).with_suffix("").parts[0]
        targets = (name.split(".") for name in imported(path, tree) if name.startswith("kernel_pipeline."))
        found = {
            parts[1] for parts in targets if (root / parts[1]).is_dir() or (root / f"{parts[1]}.py").is_file()
        }
        if mine not in ("__init__", "__main__"):
            arrows.setdefault(mine, set()).update(found - {mine})
    assert {"records", "machine", "toolchain", "timing", "statistics", "ops"} <= arrows.keys()
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as circle:
        raise AssertionError(" imports ".join(reversed(circle.args[1]))) from None


def test_the_library_imports_nothing_of_what_the_experiment_needs() -> None:
    """Only imports at module level count. A function may import a package that its other callers do not
    need."""
    heavy = {"dvc", "hydra", "mlflow", "ninja", "pandas", "pydantic", "rich", "scipy", "yaml"}
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in modules("kernel_pipeline")
        for name in imported(
            path, ast.Module([one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom))], [])
        )
        if name.partition(".")[0] in heavy
    }
    assert found == set()


def test_a_class_of_the_pipeline_has_a_name_that_no_other_class_has() -> None:
    """Kernels are exempt: each names its classes alike, as ``Problem``. The two classes ``Rate`` belong to
    code that times and verifies, so a new name would make every measured row old."""
    places: dict[str, list[str]] = {}
    for package in ("kernel_pipeline", "pipeline"):
        for path in (ROOT / package).rglob("*.py"):
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    several = {name: where for name, where in places.items() if len(where) > 1}
    assert list(several) == ["Rate"], several


def test_no_two_modules_have_one_name() -> None:
    """A command may share the name of its idea. Below ``languages`` a name is the language's."""
    for package in ("pipeline", "kernel_pipeline"):
        names: dict[str, list[str]] = {}
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            is_command = package == "pipeline" and len(parts) == 2
            if path.stem not in ("__init__", "__main__") and "languages" not in parts and not is_command:
                names.setdefault(path.stem, []).append("/".join(parts))
        assert {name: where for name, where in names.items() if len(where) > 1} == {}


def test_the_library_knows_neither_kernels_nor_pipeline_and_these_not_each_other() -> None:
    strange = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder, others in (
            ("pipeline", ("kernels",)),
            ("kernels", ("pipeline", "hydra", "mlflow", "dvc")),
            ("kernel_pipeline", ("kernels", "pipeline", "hydra", "mlflow", "dvc", "pydantic")),
        )
        for path, tree in modules(folder)
        for name in imported(path, tree)
        if name.partition(".")[0] in others and path.name != "__main__.py"
    ]
    assert strange == []


@pytest.mark.parametrize("folder", ["kernel_pipeline", "kernels", "pipeline"])
def test_imports_inside_a_package_are_relative(folder: str) -> None:
    """A wheel maps ``kernels`` and ``pipeline`` to other names."""
    absolute = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in modules(folder)
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.partition(".")[0] == folder
    ]
    assert absolute == []


def words(tree: ast.Module) -> Iterator[str]:
    """Yield the texts on which a module's decisions can depend: strings except docstrings, attributes, and
    names of keyword arguments."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg:
            yield f"{node.arg}="


def test_the_pipeline_decides_nothing_by_a_kernels_name_or_parameters() -> None:
    loaded = [loading.load(name).kernel for name in loading.names()]
    parameters = {name for one in loaded for provider in one.providers for name in provider.variables()}
    # Parameters without an underscore, such as rows and tile, are common words.
    own = {name for name in parameters if "_" in name}
    assert {"block_size", "num_warps"} <= own
    decisive = {*loading.names(), *own, *(f".{name}" for name in own), *(f"{name}=" for name in own)}
    found = {
        (path.name, word)
        for path, tree in modules("pipeline")
        if path.name not in ("new.py", "launcher_probe.py")  # they write kernels
        for word in words(tree)
        if word in decisive
    }
    # Triton uses these names for a compiled program.
    names = ("num_warps", "num_stages", ".num_warps", ".num_stages")
    assert found <= {(file, name) for file in ("launch_recorder.py", "programs.py") for name in names}


def test_nobody_lists_the_kernels() -> None:
    """Adding a folder adds a kernel, so no list and no text may name all kernels."""
    names = set(loading.names())
    found = []
    for folder in ("pipeline", "tests", "kernels"):
        for path, tree in modules(folder):
            for node in ast.walk(tree):
                if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
                    named = {one.value for one in node.elts if isinstance(one, ast.Constant)}
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    named = set(re.findall(r"\w+", node.value))
                else:
                    continue
                if len(named & names) >= len(names) - 1:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_planning_and_help_start_without_torch() -> None:
    program = (
        "import sys; import pipeline.sweep; from kernel_pipeline import loading\n"
        "from pipeline.command import explanation\n"
        "from pipeline.points import catalog; from pipeline.points.plan import Target, plan\n"
        "for name in loading.names():\n"
        "    plan(catalog.find(name), 'standard', Target('cuda')), explanation.of_kernel(name)\n"
        "print(sorted({'torch', 'triton', 'pandas', 'mlflow', 'matplotlib', 'optuna'} & set(sys.modules)))"
    )
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``make`` as from a shell, without the variables of a make that runs the tests."""
    return completed(
        ["make", "--no-print-directory", *arguments], cwd=folder, env={"PATH": os.environ["PATH"]}
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the files that make reads."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    return tmp_path


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_a_failed_test_of_a_group_is_among_those_that_are_run_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "conftest.py").write_text("from tests.grouped_names import pytest_runtest_logreport\n")
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n\n@pytest.mark.xdist_group('some')\n@pytest.mark.parametrize('it', ['a@b'])\n"
        "def test_it(it):\n    if 'PYTEST_XDIST_WORKER' in os.environ: pytest.fail('beside others')\n\n"
        "def test_other(): pass\n"
    )
    words = ("-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path))
    several = python(*words, "-n", "2", "--dist", "loadgroup")
    again = python(*words, "--last-failed", "--last-failed-no-failures", "none")
    assert "1 failed, 1 passed" in several.stdout, several
    assert "1 passed, 1 deselected" in again.stdout or "1 passed in" in again.stdout, again
    assert "test_it[a@b]" in several.stdout and "@some" not in several.stdout


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
    """The commands in dvc.yaml call ``python``, but a host may have only ``python3``."""
    python = program(copy / "my-python", 'echo "$@"')
    result = make(copy, "repro", "VENV=", f"PYTHON={python}", "ARGS=--dry")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["-m pipeline.repro --dry"]


@pytest.mark.parametrize("target", ["repro", "verify", "report", "publish"])
def test_args_reach_the_command_word_by_word(copy: Path, target: str) -> None:
    python = program(copy / "my-python", 'printf "<%s>" "$@"')
    result = make(copy, target, "VENV=", f"PYTHON={python}", "ARGS=--first second=[1,2]")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"<-m><pipeline.{target}><--first><second=[1,2]>"


def test_a_failed_repro_fails_make(copy: Path) -> None:
    python = program(copy / "my-python", 'echo "$@"; exit 3')
    result = make(copy, "repro", "VENV=", f"PYTHON={python}")
    assert result.returncode != 0
    assert result.stdout.splitlines() == ["-m pipeline.repro"]


def test_setup_installs_once_and_again_when_the_lock_changed(copy: Path) -> None:
    """The fake Python only records the calls of venv and pip."""
    fake = """[ "$*" = "-m venv --clear .venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *install*) echo "$@" >>installed ;; *find_nvcc*) exit 1 ;; esac"""
    python = program(copy / "my-python", fake)
    calls = copy / "installed"
    command = ("setup", f"PYTHON={python}")
    assert make(copy, *command).returncode == 0
    assert make(copy, *command).returncode == 0
    first = calls.read_text().splitlines()
    # Locked packages are installed by their hashes, this project without a package index, and nvcc because it
    # is missing.
    assert first == [
        "locks/install.py runtime dev torch",
        "-m pip install --quiet --no-index --no-deps --no-build-isolation --editable .",
        "locks/install.py nvcc",
        "locks/install.py numba",
    ]
    with (copy / "locks" / "dev.lock").open("a") as lock:
        lock.write("one-more==1.0\n")
    assert make(copy, *command).returncode == 0
    assert calls.read_text().splitlines() == first * 2


def test_setup_takes_torch_from_a_wheelhouse_that_has_it_and_else_leaves_the_hosts(copy: Path) -> None:
    fake = """case "$*" in *"-m venv --clear"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;; esac
case "$*" in *install*|*venv*) echo "$@" >>installed ;; esac"""
    command = ("setup", f"PYTHON={program(copy / 'my-python', fake)}", "WHEELHOUSE=house")
    (copy / "house").mkdir()
    assert make(copy, *command).returncode == 0
    calls = (copy / "installed").read_text().splitlines()
    assert "-m venv --clear --system-site-packages .venv" in calls
    assert "locks/install.py runtime dev --no-index --find-links house" in calls
    shutil.rmtree(copy / ".venv")
    (copy / "house" / "torch-1.0-py3-none-any.whl").touch()
    assert make(copy, *command).returncode == 0
    calls = (copy / "installed").read_text().splitlines()
    assert "-m venv --clear .venv" in calls
    assert "locks/install.py runtime dev torch --no-index --find-links house" in calls


def test_an_interrupted_setup_is_done_again(copy: Path) -> None:
    fake = """[ "$*" = "-m venv --clear .venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *locks/install*) echo "$@" >>installed; [ -e network ] ;; esac"""
    command = ("setup", f"PYTHON={program(copy / 'my-python', fake)}")
    assert make(copy, *command).returncode != 0
    (copy / "network").touch()
    assert make(copy, *command).returncode == 0
    calls = (copy / "installed").read_text().splitlines()
    assert calls == ["locks/install.py runtime dev torch"] * 2 + ["locks/install.py numba"]


def test_setup_goes_on_where_numba_is_not_to_be_had(copy: Path) -> None:
    fake = """[ "$*" = "-m venv --clear .venv" ] && mkdir -p .venv/bin && cp "$0" .venv/bin/python
case "$*" in *numba*) exit 1 ;; esac"""
    done = make(copy, "setup", f"PYTHON={program(copy / 'my-python', fake)}")
    assert (done.returncode, done.stdout) == (
        0,
        "note: Numba is not there: its providers are left out, its tests skipped\n",
    )


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
