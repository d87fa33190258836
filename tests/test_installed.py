"""The library and the kernels, installed by ``pip install .``, and a project that the wheel makes."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from copy import copy
from pathlib import Path

import pytest

from tests.processes import completed
from tests.project import STAGES, Project, ran

ROOT = Path(__file__).parents[1]

LIBRARY = "kernel_pipeline"

BUILT = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "dvc.yaml", "params.yaml"),
    *(".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore"),
    *("conf", "kernel_pipeline", "kernels", "pipeline"),
)


LISTED = re.compile(r"```python\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```bash\n(.*?)```", re.DOTALL)

SAME = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
"""The environment of a build that can be repeated."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the files that a build reads, with a tuned table and the rest of an earlier build."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILT:
        (source / name).parent.mkdir(exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    (source / "results" / "tuned").mkdir(parents=True)
    (source / "results" / "tuned" / "some-gpu.json").write_text("{}")
    (source / "build" / "lib" / "stale").mkdir(parents=True)
    (source / "build" / "lib" / "stale" / "__init__.py").touch()
    return source


def built_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel, without a package index, from a folder or a source distribution."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", folder)
    subprocess.run([sys.executable, "-m", "pip", "wheel", source, *options], env=SAME, check=True)
    (built,) = folder.glob("*.whl")
    return built


def built_sdist(source: Path, folder: Path) -> Path:
    """Build a source distribution from a folder."""
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", program, folder]
    subprocess.run(command, cwd=source, env=SAME, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_sdist(source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel's files, as pip installs them, and another project's package named
    kernels."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "kernels").mkdir()
    (site / "kernels" / "__init__.py").write_text("raise ImportError('another project')\n")
    return site


def run(site: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the wheel and torch installed, but without the packages that only the pipeline
    needs."""
    blocked = "dvc, hydra, mlflow, pipeline, pydantic, yaml, omegaconf, pandas, ninja, scipy"
    before = f"import sys\nfor name in '{blocked}'.split(', '): sys.modules[name] = None\n"
    return completed(
        [sys.executable, "-c", before + program],
        cwd=site,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        | {"PYTHONPATH": str(site)}
        | environment,
    )


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_a_wheel_holds_the_kernels_under_their_own_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        metadata = packed.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {name.partition("/")[0] for name in names} == {
        "kernel_pipeline",
        "kernel_pipeline-0.1.0.dist-info",
    }
    sources = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in (
            ("kernel_pipeline", LIBRARY),
            *((folder, f"{LIBRARY}/{folder}") for folder in ("kernels", "pipeline")),
            ("conf", f"{LIBRARY}/pipeline/project/conf"),
        )
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cu", ".cpp", ".cuh", ".h", ".yaml", ".j2", ".js")
    }
    assert names >= sources | {"kernel_pipeline/tuned/some-gpu.json"}
    needed = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra" not in line
    ]
    assert needed == [
        "Requires-Dist: msgspec>=0.20",
        "Requires-Dist: nvidia-ml-py>=12.560",
        "Requires-Dist: torch>=2.11",
        "Requires-Dist: triton>=3.6",
    ]


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_a_build_can_be_repeated_byte_by_byte(source: Path, sdist: Path, wheel: Path, tmp_path: Path) -> None:
    again = shutil.copytree(source, tmp_path / "again")
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
    assert built_sdist(again, tmp_path / "second").read_bytes() == sdist.read_bytes()
    with tarfile.open(sdist) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
    assert "kernels/softmax/cuda.cu" in names and "setup.py" in names
    assert not [name for name in names if name.startswith(("tests", "build"))]
    assert built_wheel(sdist, tmp_path / "wheel").read_bytes() == wheel.read_bytes()


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_index_takes_both_distributions(sdist: Path, wheel: Path) -> None:
    pytest.importorskip("twine")
    done = completed([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    assert done.returncode == 0, done.stdout


CALLS = """
import json, pickle, torch
from kernel_pipeline.ops import layernorm, softmax, untuned, warm
import kernel_pipeline.ops as ops
x = torch.randn(3, 4, 6)
assert (softmax(x) - torch.softmax(x, -1)).abs().max() < 1e-6
compiled = torch.compile(softmax, fullgraph=True, backend="aot_eager")
assert (compiled(x) - torch.softmax(x, -1)).abs().max() < 1e-6
y = torch.randn(4, 6, requires_grad=True)
layernorm(y, torch.ones(6), torch.zeros(6)).sum().backward()
assert pickle.loads(pickle.dumps(softmax)) is softmax and softmax.__module__ == "kernel_pipeline.ops"
strange = [name for name in sys.modules if name.partition(".")[0] == "kernels"]
print(json.dumps({"names": ops.names(), "strange": strange, "asked": len(untuned())}))
"""


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installation_calls_the_kernels_without_the_pipeline(site: Path) -> None:
    from kernel_pipeline import ops

    done = run(site, CALLS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"names": ops.names(), "strange": [], "asked": 2}


PROVIDERS = """
import torch
from kernel_pipeline.loading import load
from kernel_pipeline.ops import native, plans
from kernel_pipeline.ops.choice import Choice
loaded, x = load("softmax"), torch.randn(4, 6)
problem = loaded.kernel.problem(rows=4, columns=6)
for choice in (Choice("triton_row", {"num_warps": 4}, "exact", ""), Choice("cpp", {}, "exact", "")):
    entry = plans.ready(loaded, problem, choice, x.device)
    assert (entry(x, **choice.parameters) - torch.softmax(x, -1)).abs().max() < 1e-6
print(native.library(loaded, "cpp.cpp").relative_to(native.cache()).parts[::2])
"""


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installation_builds_and_runs_providers(site: Path, tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "1", "KERNELS_CACHE": str(tmp_path)}
    for _ in range(2):
        done = run(site, PROVIDERS, **environment)
        assert (done.returncode, done.stdout) == (0, "('softmax', 'cpp.so')\n"), done.stderr
    assert len(list(tmp_path.rglob("*.so"))) == 1


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_console_script_of_an_installation_says_what_is_there(site: Path) -> None:
    entry = (site / "kernel_pipeline-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert "kernel-pipeline = kernel_pipeline.__main__:main" in entry
    done = run(site, "from kernel_pipeline.__main__ import main; main()")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: the pipeline's commands need packages that are not installed: pip ")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Install the wheel in a virtual environment that has this environment's other packages. Return a
    project, not made yet, whose commands run there."""
    folder = tmp_path_factory.mktemp("installed")
    project = Project(folder)
    bin_folder = folder / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A folder that a .pth file names has no .pth files of its own, as an editable installation needs.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    options = ("--no-deps", "--no-index", "--ignore-installed", "--quiet")
    subprocess.run([bin_folder / "python", "-m", "pip", "install", *options, wheel], check=True)
    project.env["PATH"] = f"{bin_folder}:{project.env['PATH']}"
    project.env.pop("PYTHONPATH", None)
    project.root.mkdir()
    return project


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_without_a_project_the_commands_say_how_to_make_one(installed: Project) -> None:
    refused = installed.run("kernel-pipeline", "sweep", "kernel=softmax", ok=False)
    assert (
        "kernel-pipeline new project=DIR makes a project" in refused.stderr
        and refused.stderr.count("\n") == 1
    )
    printed = installed.run("kernel-pipeline", "sweep", "--help", "kernel=softmax").stdout
    assert "kernel-pipeline sweep kernel=softmax block_size" in printed and "triton_online" in printed
    assert "python -m pipeline" not in printed
    version = installed.run("kernel-pipeline", "--version").stdout
    assert version == "kernel-pipeline 0.1.0\n"


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_an_installation_measures_by_the_same_code_as_the_checkout(installed: Project) -> None:
    there = installed.python("kernel_pipeline.pipeline.keys.versions").stdout
    here = completed([sys.executable, "-m", "pipeline.keys.versions"], cwd=ROOT, check=True)
    assert there == here.stdout


def shell_lines(page: str, mark: str) -> list[str]:
    """Return the commands of the page's shell block that contains ``mark``, without comments."""
    (block,) = [one for one in SHELL.findall((ROOT / page).read_text()) if mark in one]
    return [line.partition("#")[0].strip() for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_a_project_of_ones_own_is_measured_as_the_page_says(installed: Project) -> None:
    _, made, enter, commit, repro, sweep, new = shell_lines("docs/library.md", "kernel-pipeline new project=")
    installed.run("bash", "-c", made)
    project = copy(installed)
    project.root = installed.root / enter.removeprefix("cd ")
    again = project.run("kernel-pipeline", "new", "project=.", ok=False)
    assert "exists already, and this command overwrites no file" in again.stderr
    # Fewer points than the page's.
    project.set_param("preset", "smoke")
    project.edit("conf/preset/smoke.yaml", lambda text: f"{text}closer: largest\n")
    project.edit("kernels/relu/__init__.py", lambda text: re.sub(".*compiled=True.*\n", "", text))
    project.run("bash", "-c", commit)

    assert ran(project.run("bash", "-c", repro).stdout) == list(STAGES)
    rows = project.rows("relu")
    assert {(point.provider, row.outcome.status) for point, row in rows.items()} == {
        ("torch", "ok"),
        ("triton", "verified"),
    }
    assert all(row.outcome.timing for point, row in rows.items() if point.provider == "torch")
    (run,) = {row.origin.run for row in rows.values()}
    provenance = project.place("results") / "provenance" / f"{project.gpu()}.jsonl"
    runs = [json.loads(line) for line in provenance.read_text().splitlines()]
    (noted,) = [one for one in runs if one.get("run") == run]
    assert noted["commit"] == project.run("git", "rev-parse", "HEAD").stdout.strip()
    assert not noted.get("dirty") and noted["command"].startswith("kernel-pipeline sweep kernel=relu ")

    project.run("bash", "-c", sweep)
    swept = project.rows("relu", project.root / "outputs")
    assert {point.parameters.get("block_size") for point in swept} == {None, 512, 1024}
    project.run("bash", "-c", new)
    unknown = project.run("kernel-pipeline", "sweep", "kernel=mien", ok=False)
    assert "mine" in unknown.stderr and "softmax" in unknown.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_examples_of_the_librarys_page_run_word_for_word(site: Path, tmp_path: Path) -> None:
    *examples, test = LISTED.findall((ROOT / "docs" / "library.md").read_text())
    assert len(examples) == 5 and "kernel_bench" in test
    without_scipy = [example for example in examples if "import compare" not in example]
    readme = next(one for one in LISTED.findall((ROOT / "README.md").read_text()) if "bench(" in one)
    named = "x, my_function = torch.randn(4, 6), torch.square\n"
    done = run(site, "\n".join([*without_scipy, named, readme]), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0 and done.stdout.startswith("softmax: "), done.stderr
    assert "\nsquare: " in done.stdout
    compared = run(site, "\n".join(examples[:4]), XDG_CACHE_HOME=str(tmp_path))
    assert "ImportError: verdicts need SciPy: pip install '.[compare]' in a checkout." in compared.stderr
    assert "pytest11" in (site / "kernel_pipeline-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert (site / "kernel_pipeline" / "py.typed").exists()


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_pages_test_and_command_run_word_for_word(installed: Project) -> None:
    *examples, test = LISTED.findall((ROOT / "docs" / "library.md").read_text())
    installed.env["XDG_CACHE_HOME"] = str(installed.root / "cache")
    defined = examples[1].partition("r = bench")[0]
    (installed.root / "test_softmax.py").write_text(f"import torch\n\n\n{defined}\n{test}")
    passed = installed.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_softmax.py")
    assert "1 passed" in passed.stdout
    (command,) = shell_lines("docs/library.md", "python -m kernel_pipeline bench")
    (installed.root / "file.py").write_text(
        "import torch\n\n\ndef function(x):\n    return torch.square(x)\n"
    )
    words = command.split()
    done = completed(words, cwd=installed.root, env=installed.env)
    assert done.stdout.startswith("file.py:function: "), done.stderr
    assert done.returncode == 0 or "other processes had the cores" in done.stdout
