"""What changes a key and what does not: one that misses something compares what can't be compared."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import flags
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import ROOT
from pipeline.keys import identity, versions
from pipeline.keys.identity import Identity
from tests import factory

FILES = {
    "__init__.py": '''"""Twice the input."""
from __future__ import annotations
from dataclasses import dataclass
from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, one_of

ROOM = 2.0
UNUSED = 1

@dataclass(frozen=True, kw_only=True)
class Problem:
    n: int
    dtype: str = one_of("float32", "bfloat16")

    @property
    def shape(self):
        return (self.n,)

@dataclass(frozen=True, kw_only=True)
class Tile:
    block: int = one_of(64, 128)

def work(problem):
    return Work(8 * problem.n, {"float32": problem.n})

def tolerance(problem):
    return Tolerance(rtol=ROOM * 1e-6, atol=0.0)

def smaller(problem):
    return problem

def fits(problem, tile, gpu):
    return None

kernel = Kernel(
    problem=Problem, size=("n",), work=work, tolerance=tolerance, interpreted=smaller,
    providers=(
        Provider("torch", "torch.py:double"),
        Provider("compiled", "torch.py:added", compiled=True),
        Provider("triton", "triton.py:run", Tile, fits),
        Provider("cuda", "cuda.cu:run", Tile),
        Provider("cpp", "cpp.cpp:run"),
        Provider("peer", "peers.py:run", language="torch", package="planted-peer"),
        Provider("formed", "torch.py:kept", reference="form.py"),
    ),
)
''',
    "reference.py": '''from kernel_pipeline.tensors import dtype_of, normal

def inputs(problem, device, seed):
    return normal([problem.shape], problem.dtype, device, seed)

def outputs(problem):
    return [(problem.shape, dtype_of(problem.dtype))]

def reference(x):
    """In float64."""
    return x.double() * 2
''',
    "torch.py": """def double(x):
    return x * 2

def added(x):
    return x + x

def kept(x):
    return x
""",
    "form.py": """from .reference import inputs as whole
from .reference import reference as right

def inputs(problem, device, seed):
    return [2 * x for x in whole(problem, device, seed)]

def reference(x):
    return right(x) / 2
""",
    "triton.py": '''from .steps import WIDTH, step

def run(x, block):
    """A step a block."""
    return step(x, block, WIDTH)
''',
    "steps.py": """WIDTH = 4

def step(x, block, width):
    return x * 2

def of_nobody():
    return 0
""",
    "cuda.cu": """#include <cmath>
#include "step.cuh"
int run() { return step(); }  // once
int two() { return 2; }
""",
    "step.cuh": "#pragma once\ninline int step() { return 1; }\n",
    "cpp.cpp": "int run() { return 3; }\n",
    "peers.py": "def run(x):\n    import planted_peer\n    return planted_peer.run(x)\n",
    "kernel.yaml": "workloads: {one: {x: size, size: [64]}}\npresets: {smoke: {workloads: [one]}}\n",
}

EVERY = {"torch", "compiled", "triton", "cuda", "cpp", "peer", "formed"}
H200 = factory.environment(factory.H200)
CPU = factory.environment(factory.CPU)
SETTINGS = TimingSettings()
Write = Callable[..., loading.Loaded]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes the planted kernel, each time elsewhere, with one file edited, and loads it."""
    loaded: list[loading.Loaded] = []

    def made(file: str = "torch.py", before: str = "", after: str = "") -> loading.Loaded:
        folder = tmp_path / str(len(loaded)) / "planted"
        folder.mkdir(parents=True)
        assert before in FILES[file], "an edit that changes nothing"
        for name, text in FILES.items():
            (folder / name).write_text(text.replace(before, after) if name == file else text)
        loaded.append(loading.load(str(folder)))
        return loaded[-1]

    yield made
    for one in loaded:
        del sys.modules[one.package], loading._loaded[one.where]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> loading.Loaded:
    """The planted kernel as it is."""
    folder = tmp_path_factory.mktemp("as_it_is") / "planted"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return loading.load(str(folder))


def keys(
    loaded: loading.Loaded,
    environment: Environment = H200,
    settings: TimingSettings = SETTINGS,
    seed: int = 0,
) -> dict[str, str]:
    made = Identity(loaded, environment, settings, seed)
    return {provider.name: made.key(point_of(loaded, provider.name)) for provider in loaded.kernel.providers}


def point_of(loaded: loading.Loaded, provider: str) -> Point:
    return Point(kernel=loaded.name, provider=provider, problem=Values({"n": 64, "dtype": "float32"}))


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {provider for provider, key in before.items() if after[provider] != key}


@pytest.mark.parametrize(
    ("file", "before", "after", "whose"),
    [
        pytest.param("torch.py", "x * 2", "2 * x", {"torch"}, id="an entry's body"),
        pytest.param("torch.py", "x + x", "2 * x", {"compiled"}, id="a compiled entry's body"),
        pytest.param("triton.py", "block, WIDTH", "WIDTH, block", {"triton"}, id="a Triton entry's body"),
        pytest.param("steps.py", "x * 2", "2 * x", {"triton"}, id="a helper in another module"),
        pytest.param("steps.py", "WIDTH = 4", "WIDTH = 8", {"triton"}, id="a constant"),
        pytest.param("cuda.cu", "return step()", "return -step()", {"cuda"}, id="CUDA"),
        pytest.param("step.cuh", "return 1", "return 2", {"cuda"}, id="a header"),
        pytest.param("cpp.cpp", "3", "4", {"cpp"}, id="C++"),
        pytest.param("peers.py", "run(x)\n", "go(x)\n", {"peer"}, id="how a peer is called"),
        pytest.param("form.py", "[2 * x for", "[x + x for", {"formed"}, id="a form of the inputs"),
        pytest.param("form.py", "/ 2", "* 0.5", {"formed"}, id="the reference of a form"),
        pytest.param("reference.py", "double() * 2", "double() + 2", EVERY, id="the reference"),
        pytest.param("reference.py", "seed)\n", "seed + 1)\n", EVERY, id="the inputs"),
        pytest.param("reference.py", "dtype_of(problem.dtype)", "None", EVERY, id="the outputs"),
        pytest.param("__init__.py", "1e-6", "1e-5", EVERY, id="the tolerance"),
        pytest.param("__init__.py", "ROOM = 2.0", "ROOM = 3.0", EVERY, id="the tolerance's constant"),
        pytest.param("__init__.py", "(self.n,)", "(self.n, 1)", EVERY, id="the problem's method"),
        pytest.param("__init__.py", "return problem\n", "return None\n", {"triton"}, id="for an interpreter"),
        pytest.param("__init__.py", "cuda.cu:run", "cuda.cu:two", {"cuda"}, id="another operator"),
        pytest.param("__init__.py", "torch.py:double", "torch.py:added", {"torch"}, id="another function"),
        pytest.param("__init__.py", 'double"', 'double", compiled=True', {"torch"}, id="torch.compile"),
        pytest.param("__init__.py", "work=work", 'work=work, arguments=("n",)', EVERY, id="arguments"),
        pytest.param("__init__.py", "work=work", "work=work, in_place=True", EVERY, id="in place"),
    ],
)
def test_a_key_changes_with_what_its_provider_runs(
    planted: loading.Loaded, write: Write, file: str, before: str, after: str, whose: set[str]
) -> None:
    assert changed(keys(planted), keys(write(file, before, after))) == whose


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        pytest.param("torch.py", "return x * 2", "# Twice.\n    return (x*2)", id="a comment, and spaces"),
        pytest.param("triton.py", "A step a block.", "Steps.", id="a docstring"),
        pytest.param("reference.py", '    """In float64."""\n', "", id="no docstring"),
        pytest.param("__init__.py", "Twice the input.", "Two times it.", id="the kernel's docstring"),
        pytest.param("cuda.cu", "  // once", "/* often */", id="a comment in CUDA"),
        pytest.param("cuda.cu", "{ return step(); }", "{\n  return step();\n}", id="lines in CUDA"),
        pytest.param(
            "step.cuh", "#pragma once\n", "// A header.\n#pragma  once\n\n", id="a comment in a header"
        ),
        pytest.param(
            "__init__.py", "providers=(", 'providers=(Provider("new", "cpp.cpp:run"), ', id="a provider"
        ),
        pytest.param("__init__.py", "one_of(64, 128)", "one_of(32, 64, 128, default=64)", id="a choice"),
        pytest.param("__init__.py", "return None", 'return "no"', id="fits"),
        pytest.param("__init__.py", "UNUSED = 1", "UNUSED = 2", id="what nobody reaches"),
        pytest.param("steps.py", "return 0", "return 1", id="a function that nobody calls"),
        pytest.param("__init__.py", "work=work", 'work=work, headline="tflops"', id="the headline"),
        pytest.param("kernel.yaml", "[64]", "[64, 128]", id="the YAML"),
    ],
)
def test_a_key_stays_as_long_as_its_provider_runs_the_same(
    planted: loading.Loaded, write: Write, file: str, before: str, after: str
) -> None:
    assert changed(keys(planted), keys(write(file, before, after))) == set()


@pytest.mark.parametrize(("name", "whose"), [("NVCC_FLAGS", {"cuda"}), ("CXX_FLAGS", {"cpp"})])
def test_a_compilers_flags_are_those_of_its_libraries(
    planted: loading.Loaded, monkeypatch: pytest.MonkeyPatch, name: str, whose: set[str]
) -> None:
    before = keys(planted)
    monkeypatch.setattr(identity, name, ("-O2",))
    assert changed(before, keys(planted)) == whose


@pytest.mark.parametrize(
    ("environment", "change", "whose"),
    [
        (H200, {"gpu": "nvidia-h100", "name": "NVIDIA H100"}, EVERY),
        (H200, {"driver": "600.1"}, EVERY),
        (H200, {"torch": "2.13.0"}, EVERY),
        (H200, {"cuda": "13.1"}, EVERY),
        (H200, {"triton": "3.7.1"}, {"triton", "compiled", "peer"}),
        (H200, {"nvcc": "13.1.0"}, {"cuda"}),
        (H200, {"cxx": "clang"}, {"cpp"}),
        (H200, {"cpu": "Xeon", "cpu_threads": 2, "python": "3.13", "platform": "Linux-aarch64"}, set()),
        (H200, {"image": "one@sha256:1", "base_image": "two@sha256:2", "memory_mib": 1}, set()),
        (CPU, {"cpu_threads": 2}, EVERY),
        (CPU, {"host": "another"}, EVERY),
        (CPU, {"python": "3.13"}, EVERY),
        (CPU, {"cxx": "clang"}, {"cpp", "compiled"}),
        (CPU, {"image": "one@sha256:1"}, set()),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else getattr(value, "kind", ""),
)
def test_an_environment_counts_as_far_as_a_provider_feels_it(
    planted: loading.Loaded, environment: Environment, change: dict[str, object], whose: set[str]
) -> None:
    other = environment.replace(**change)
    assert changed(keys(planted, environment), keys(planted, other)) == whose


@pytest.mark.parametrize(
    ("name", "on_gpu", "on_cpu"),
    [
        ("NVIDIA_TF32_OVERRIDE", EVERY, EVERY),
        ("CUBLAS_WORKSPACE_CONFIG", EVERY, EVERY),
        ("TRITON_DEFAULT_FP_FUSION", {"triton", "compiled", "peer"}, {"triton", "compiled", "peer"}),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", {"compiled"}, {"compiled"}),
        ("OMP_NUM_THREADS", set(), EVERY),
        ("MKL_NUM_THREADS", set(), EVERY),
        ("TRITON_CACHE_DIR", set(), set()),
        ("TORCHINDUCTOR_CACHE_DIR", set(), set()),
        ("CUDA_VISIBLE_DEVICES", set(), set()),
        ("PATH", set(), set()),
    ],
)
def test_a_flag_counts_for_those_who_read_it(
    planted: loading.Loaded, monkeypatch: pytest.MonkeyPatch, name: str, on_gpu: set[str], on_cpu: set[str]
) -> None:
    for environment, whose in ((H200, on_gpu), (CPU, on_cpu)):
        monkeypatch.delenv(name, raising=False)
        before = environment.replace(flags=flags(environment.kind))
        monkeypatch.setenv(name, "planted")
        after = environment.replace(flags=flags(environment.kind))
        assert changed(keys(planted, before), keys(planted, after)) == whose


def test_a_peers_version_is_its_own_alone(planted: loading.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(planted)
    monkeypatch.setattr(metadata, "version", lambda package: "1.2.3")
    assert changed(before, keys(planted)) == {"peer"}


def test_the_seed_and_every_setting_of_the_timing_count(planted: loading.Loaded) -> None:
    seen = [keys(planted), keys(planted, seed=1)]
    others = {"timer": "event", "cache": "hot", "stopping": "count", "target_rel_ci": 0.1}
    others |= {"min_samples": 3, "max_seconds": 9.0}
    assert set(others) == set(TimingSettings.__struct_fields__), "every setting is tried"
    for name, value in others.items():
        seen.append(keys(planted, settings=SETTINGS.replace(**{name: value})))
    for provider in EVERY:
        assert len({one[provider] for one in seen}) == len(seen)


def test_a_point_counts_whatever_the_order_of_its_names(planted: loading.Loaded) -> None:
    made = Identity(planted, H200, SETTINGS, 0)

    def key(problem: dict[str, int | str], **parameters: int | bool) -> str:
        return made.key(
            Point(kernel="planted", provider="triton", problem=Values(problem), parameters=Values(parameters))
        )

    first = key({"n": 64, "dtype": "float32"}, block=64)
    assert key({"dtype": "float32", "n": 64}, block=64) == first
    others = [key({"n": 65, "dtype": "float32"}, block=64), key({"n": 64, "dtype": "bfloat16"}, block=64)]
    others += [key({"n": 64, "dtype": "float32"}, block=128), key({"n": 64, "dtype": "float32"})]
    others += [key({"n": 64, "dtype": "float32"}, block=1), key({"n": 64, "dtype": "float32"}, block=True)]
    assert len({first, *others}) == 7


def test_the_parts_say_what_is_old(
    planted: loading.Loaded, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = write("torch.py", "x * 2", "2 * x")
    point = point_of(planted, "torch")
    now = Identity(edited, H200.replace(driver="600.1"), SETTINGS, 0).parts(point)
    before = Identity(planted, H200, SETTINGS, 0).parts(point)
    assert now.differences(before) == ["source", "environment"]
    monkeypatch.setattr(versions, "known", lambda: ())
    assert Identity(planted, CPU, SETTINGS, 1).parts(point).differences(before) == [
        "measurement",
        "environment",
        "settings",
    ]


def test_source_that_can_not_be_read_is_said_with_its_place(write: Write) -> None:
    for file, before, after, said in (
        ("torch.py", "def double(x):", "def double(x:", r"torch\.py, line 1: "),
        ("torch.py", "def double", "def other", r"torch\.py defines no 'double' at its top level"),
        (
            "__init__.py",
            "tolerance=tolerance",
            "tolerance=lambda p: None",
            "write <lambda> as a named function",
        ),
    ):
        with pytest.raises(UserError, match=said):
            keys(write(file, before, after))


WAYS = set(versions.TIMERS)
MEASURING = {
    "kernel_pipeline/timing/timers/graph.py": ("TURN_US = 800.0", "TURN_US = 900.0", {"graph"}),
    "kernel_pipeline/timing/timers/event.py": ("BATCH = 20", "BATCH = 30", {"graph", "event"}),
    "kernel_pipeline/timing/timers/cpu.py": (
        "SHORTEST_SAMPLE_US = 200.0",
        "SHORTEST_SAMPLE_US = 1.0",
        {"cpu"},
    ),
    "kernel_pipeline/timing/timers/capture.py": ("MOST_LAUNCHES = 256", "MOST_LAUNCHES = 64", {"graph"}),
    "kernel_pipeline/timing/timers/do_bench.py": ("FLUSH_BYTES = 256", "FLUSH_BYTES = 128", {"do_bench"}),
    "kernel_pipeline/timing/timers/wall.py": ("range(3)", "range(4)", {"wall"}),
    "kernel_pipeline/timing/timers/__init__.py": ("bitwise_not_()", "zero_()", WAYS),
    "kernel_pipeline/statistics/quantiles.py": ("1.96", "1.64", WAYS),
    "kernel_pipeline/timing/stopping.py": ("self.min_samples and", "1 and", WAYS),
    "kernel_pipeline/timing/stopwatch.py": ("COLD_FACTOR = 3", "COLD_FACTOR = 1", WAYS),
    "kernel_pipeline/execution/provider_runner.py": (
        "quantile(ordered, 0.5)",
        "quantile(ordered, 0.4)",
        WAYS,
    ),
    "kernel_pipeline/execution/verifier.py": ("first=0", "first=1", WAYS),
    "kernel_pipeline/execution/point_audit.py": ("MOST_EDITIONS = 6", "MOST_EDITIONS = 60", WAYS),
    "kernel_pipeline/execution/plausibility.py": ("GPUS_CEILING = 1.5", "GPUS_CEILING = 15", WAYS),
    "kernel_pipeline/execution/supervisor.py": ("MOST_DELAY = 0.05", "MOST_DELAY = 0.5", WAYS),
    "kernel_pipeline/execution/idle_threads.py": ("COMPUTES = 0.5", "COMPUTES = 0.6", WAYS),
    "kernel_pipeline/execution/shared_memory.py": ("offset += sets * apart", "offset += apart", WAYS),
}
NOT_MEASURING = {
    "kernel_pipeline/timing/timers/graph.py": ("from 1 us up", "from 2 us up"),
    "kernel_pipeline/execution/provider_runner.py": (
        '"""Call and time a provider at a point ',
        '"""A point ',
    ),
    "kernel_pipeline/execution/child_process.py": ("TORN_S = 30", "TORN_S = 3"),
    "kernel_pipeline/execution/process_state.py": ("is running", "runs"),
    "kernel_pipeline/execution/workers.py": ("if self._spare is None:", "if not self._spare:"),
    "pipeline/execution/schedule.py": ("COMPILING_WEIGHT = 35", "COMPILING_WEIGHT = 3"),
    "kernel_pipeline/records/measurement.py": ("[:500]", "[:50]"),
    "pipeline/points/plan.py": ('"needs a GPU"', '"no"'),
    "kernel_pipeline/toolchain/extension.py": ("def is_cuda(", "def is_of_cuda("),
    "kernel_pipeline/timing/rates.py": ("LONG_ENOUGH_US = 200.0", "LONG_ENOUGH_US = 2.0"),
    "pipeline/sweeping/kernel_sweep.py": ("middle = order", "middle = list(order)"),
}


@contextmanager
def edited(path: Path, before: str, after: str) -> Iterator[None]:
    """A file with something else in it."""
    text = path.read_text()
    assert before in text, "an edit that changes nothing"
    path.write_text(text.replace(before, after))
    try:
        yield
    finally:
        path.write_text(text)


def digests() -> dict[str, str]:
    return {way: versions.digest.__wrapped__(way) for way in versions.TIMERS}


@pytest.fixture(scope="module")
def pipeline_copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of library and pipeline, and the digests of its measuring code."""
    root = tmp_path_factory.mktemp("tree")
    for part in ("kernel_pipeline", "pipeline"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "ROOT", root)
        made = digests()
    assert made == digests(), "of the repository, wherever it lies"
    return root, made


@pytest.mark.parametrize("file", MEASURING)
def test_code_that_times_or_verifies_counts_for_those_who_use_it(
    pipeline_copy: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    root, before = pipeline_copy
    monkeypatch.setattr(versions, "ROOT", root)
    old, new, whose = MEASURING[file]
    with edited(root / file, old, new):
        assert changed(before, digests()) == whose


def test_other_code_of_the_pipeline_does_not_count(
    pipeline_copy: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before = pipeline_copy
    monkeypatch.setattr(versions, "ROOT", root)
    with ExitStack() as stack:
        for file, (old, new) in NOT_MEASURING.items():
            stack.enter_context(edited(root / file, old, new))
        assert changed(before, digests()) == set()


def test_the_timer_of_the_settings_and_the_device_decide_which_code_it_is() -> None:
    assert versions.measurement("cuda", "auto") == versions.measurement("cuda", "graph")
    assert versions.measurement("cpu", "auto") == versions.measurement("cpu", "event"), "a CPU has no other"
    assert len(set(digests().values())) == len(versions.TIMERS)
