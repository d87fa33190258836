"""Environments as sides of a comparison, with packages that pip installs from a folder of small wheels."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from kernel_pipeline import files
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.machine import compilers
from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from pipeline import ROOT
from pipeline.comparing import bisection
from pipeline.points import catalog
from pipeline.reporting.comparison import Compared, moved
from pipeline.store.comparisons import Comparison
from pipeline.verdicts import environments, sides
from pipeline.verdicts.opponents import Named
from pipeline.verdicts.sides import Answer, Question
from tests.kernel_pipeline.machine.test_compilers import fake_nvcc
from tests.kernel_pipeline.toolchain.tiny import needs_nvcc
from tests.planted.tree import PLANTED, cpu_tree, trust_busy_cores

PACE = """
FACTOR = 3

def tripled(x):
    return [x * 3 for _ in range({calls})][-1]
"""
FAST, SLOW, BROKEN = PACE.format(calls=1), PACE.format(calls=300), "raise ImportError('it is broken')"
VERSIONS = {"1.0": FAST, "1.1": BROKEN, "1.2": SLOW, "1.4": SLOW, "1.5": SLOW}
NEEDS = {"1.4": "Requires-Dist: absent-from-the-folder\n", "1.5": "Requires-Python: >=3.99\n"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables with which pip only knows a folder of wheels of the package ``pace``."""
    folder = tmp_path_factory.mktemp("wheels")
    for version, text in VERSIONS.items():
        about = f"Metadata-Version: 2.1\nName: pace\nVersion: {version}\n{NEEDS.get(version, '')}"
        wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        info = f"pace-{version}.dist-info"
        written = {"pace.py": text, f"{info}/METADATA": about, f"{info}/WHEEL": wheel}
        with zipfile.ZipFile(folder / f"pace-{version}-py3-none-any.whl", "w") as file:
            for name, content in written.items():
                file.writestr(name, content)
            file.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*written, f"{info}/RECORD"]))
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_QUIET": "2",
    }


@pytest.fixture
def here(tmp_path: Path, index: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the environments that this process makes."""
    for name, value in index.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    return tmp_path / "environments"


def quiet(line: str) -> None:
    """Take a line about the progress."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("environments")
def test_each_side_is_measured_and_verified_with_its_own_packages(
    tmp_path: Path, index: Mapping[str, str]
) -> None:
    tree = cpu_tree(tmp_path)
    trust_busy_cores(tree)
    kernel = tmp_path / "elsewhere" / "tripled"
    shutil.copytree(PLANTED / "tripled", kernel, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in (
        ("torch", "x * 3", "pace.tripled(x)"),
        ("reference", "double() * 3", "double() * pace.FACTOR"),
    ):
        text = (kernel / f"{name}.py").read_text()
        assert old in text
        (kernel / f"{name}.py").write_text(
            text.replace(old, new).replace("import torch\n", "import pace\nimport torch\n", 1)
        )
    short = ("rounds=2", "most_rounds=8", "by=180%")

    def compare(*more: str) -> subprocess.CompletedProcess[str]:
        options = (f"kernel={kernel}", "size=100", "provider=torch", *short, *more)
        process = tree.start(*options, command="compare", variables=index)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    searched = compare("a=env:pace==1.0", "b=env:pace==1.2", "bisect=true")
    assert searched.returncode == 1, searched.stdout + searched.stderr
    assert "a is env:pace==1.0, b is env:pace==1.2" in searched.stdout
    assert "env:pace==1.1 is skipped: a point fails there." in searched.stdout
    assert searched.stderr == (
        "error: the first version that is slower than env:pace==1.0 is one of the 2 above: no time decides "
        "between them.\n"
    )
    (path,) = (tree.root / "outputs" / "comparisons" / "tripled").glob("*/*1.2.json")
    found = Comparison.from_json(path.read_bytes())
    assert [one.verdict for one in found.rows] == ["slower"]
    assert [one.packages["pace"] for one in (found.a, found.b)] == ["1.0", "1.2"]
    assert found.a.packages["torch"] and found.a.packages["triton"] == found.b.packages["triton"]

    (made,) = (tree.root / "local" / "environments").glob("pace-1.2-*")
    same = compare("a=env:pace>=1.2,<1.4", f"b=env:{made}")
    assert same.returncode == 0, same.stderr
    assert "Left out, for both sides have the same sources and packages: 1 point." in same.stdout


def toolkit(folder: Path, version: str) -> Path:
    """Make a CUDA toolkit whose nvcc is this machine's, but reports another version."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    real = find_nvcc().path
    nvcc.write_text(
        f'#!/bin/sh\ncase "$*" in\n--version) echo "release, V{version}";;\n*) exec {real} "$@";;\nesac\n'
    )
    nvcc.chmod(0o755)
    return folder


@needs_nvcc
@pytest.mark.slow
def test_the_nvcc_of_an_environment_builds_its_side_s_libraries_into_a_folder_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tmp_path / "elsewhere" / "tripled"
    shutil.copytree(PLANTED / "tripled", kernel, ignore=shutil.ignore_patterns("__pycache__"))
    declared = (kernel / "__init__.py").read_text()
    cpp = 'Provider("cpp", "cpp.cpp:cpp"),'
    assert cpp in declared
    (kernel / "__init__.py").write_text(declared.replace(cpp, 'Provider("cuda", "cuda.cu:cuda"),'))
    (kernel / "cuda.cu").write_text("__global__ void nothing() {}\n")
    monkeypatch.setattr(files, "WORK", tmp_path)
    side = environments.packages(f"env:{toolkit(tmp_path / 'toolkit', '13.99.1')}", quiet)
    listing = Question(
        where=str(kernel), preset="smoke", device="cpu", settings=TimingSettings(), seed=0, of_packages=True
    )

    def asked(question: Question) -> Answer:
        with sides.begin(Root(ROOT, environments.variables(side)), [question]) as process:
            (reply,) = sides.ended(process)
        assert reply.answer is not None, reply.error
        return reply.answer

    theirs, ours = asked(listing), sides.answer(listing)
    assert theirs.packages["nvcc"] == "13.99.1" and ours.packages["nvcc"] == find_nvcc().version
    assert [one.parts.key for one in theirs.planned] == [one.parts.key for one in ours.planned], (
        "nvcc compiles nothing that a CPU times"
    )
    of_a, of_b = environments.differing(ours.packages, theirs.packages)
    assert "nvcc 13.99.1" in environments.shown(of_b) and "nvcc 13.99.1" not in environments.shown(of_a)
    done = asked(listing.replace(build=("cuda",)))
    assert done.broken == {}
    (made,) = (tmp_path / "build" / "environments").rglob("cuda.json")
    assert extension.Manifest.from_json(made.read_bytes()).recipe.compilers[0] == "13.99.1"


def test_a_whole_toolkit_is_a_side_and_one_that_can_not_build_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, toolkit = tmp_path / "side", tmp_path / "side/nvidia/cu13"
    fake_nvcc(toolkit, "13.1.0")
    (side / "nvidia_cuda_nvcc-13.1.0.dist-info").mkdir()
    assert environments.packages(f"env:{side}", quiet) == side
    (toolkit / "lib64/libcudart_static.a").unlink()
    # No other nvcc of this machine stands in for it.
    for others in ([], [fake_nvcc(tmp_path / "ours", "13.0.1")]):
        monkeypatch.setattr(compilers, "packaged", lambda program, others=others: others)
        with pytest.raises(UserError, match=r"has no libcudart_static.a, .*: name a whole toolkit, as env:"):
            environments.packages(f"env:{side}", quiet)


MISTAKES = {
    "env:pace==7": "pip's indexes have no pace==7 for Python 3.1",
    "env:nobody-has-it==1": "they have no version of it",
    "env:pace=1": "pip can't install pace=1: Invalid requirement",
    "env:pace==1.4": "have no absent-from-the-folder for Python",
    "env:pace==1.5": "requires a different Python",
    "env:no/folder": "there is no folder no/folder.",
    "env:EMPTY": "holds no installed package",
    "env:OTHER": "its Python is 3.99, and this command's is ",
    "env:BARE": "it has no torch: install torch there",
}


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "OTHER/lib/python3.99/site-packages").mkdir(parents=True)
    (tmp_path / f"BARE/lib/python{environments.PYTHON}/site-packages/pace-1.0.dist-info").mkdir(parents=True)
    name = text.removeprefix("env:")
    text = f"env:{tmp_path / name}" if name.isupper() else text
    with pytest.raises(UserError) as raised:
        environments.packages(text, quiet)
    assert str(raised.value).startswith(f"{text}: ") and "\n" not in str(raised.value)
    assert MISTAKES[f"env:{name}"] in str(raised.value)


def test_without_a_network_the_sentence_says_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NO_INDEX", "0"), ("INDEX_URL", "http://127.0.0.1:9/simple"), ("RETRIES", "1")):
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(UserError, match="pip reaches no index that has nobody-has-it==1"):
        environments.packages("env:nobody-has-it==1", quiet)


@pytest.mark.slow
def test_an_interrupted_installation_leaves_nothing_and_a_finished_one_is_kept(here: Path) -> None:
    def interrupt(line: str) -> None:
        if "Installing" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environments.packages("env:pace==1.0", interrupt)
    assert [path.name for path in here.iterdir() if path.is_dir()] == []
    made = environments.packages("env:pace==1.0", quiet)
    assert (made / "pace.py").read_text() == FAST

    again = environments.packages("env:pace==1.0", interrupt)
    assert again == made
    variables = os.environ | dict(environments.variables(made))
    code = (
        "import json; from pipeline.verdicts import environments; print(json.dumps(environments.installed()))"
    )
    said = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, check=True).stdout
    beside = json.loads(said)
    assert beside.pop("pace") == "1.0" and beside == environments.installed()


@pytest.mark.usefixtures("here")
def test_versions_between_two_are_those_that_an_index_offers() -> None:
    entry, (good, bad) = catalog.find("square"), map(Named, ("env:pace==1.0", "env:pace==1.2"))
    line = bisection.between(entry, good, bad, quiet)
    assert [one.name for one in line] == ["env:pace==1.1", "env:pace==1.2"]
    assert [bisection.before(entry, good, line, one) for one in line] == [good, line[0]]
    for one, other in ((good, good), (bad, good)):
        with pytest.raises(UserError, match="is not older than"):
            bisection.between(entry, one, other, quiet)
    for other in (Named("tree"), Named("env:other==2"), Named("env:pace>=1.2")):
        with pytest.raises(UserError, match="write a=env:PACKAGE==GOOD b=env:PACKAGE==BAD"):
            bisection.between(entry, good, other, quiet)


def test_a_moved_optimum_is_named_where_the_old_one_is_worse() -> None:
    def row(name: str, a_us: float, b_us: float) -> Compared:
        return Compared("4096 float32", name, name, a_us, b_us, estimate=None, verdict="same")  # type: ignore[arg-type]

    (said,) = moved([row("tile 4", 10.0, 12.0), row("tile 8", 11.0, 11.0), row("other 1", 1.0, 9.0)], 0.02)
    assert said == (
        "The fastest configuration of tile at 4096 float32 moved from 4 (10.0 us in a, 12.0 us in b) to 8 "
        "(11.0 us in b)."
    )
    assert moved([row("tile 4", 10.0, 11.1), row("tile 8", 11.0, 11.0)], 0.02) == [], "within the margin"
