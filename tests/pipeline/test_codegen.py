"""Generated code from real compilers and tools: Triton, nvcc and Inductor compile, NVIDIA's tools
disassemble, and the command prints."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.declared import Value
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import find_nvcc, fingerprint
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from kernel_pipeline.toolchain.resources import resources
from pipeline import ROOT, build, codegen
from pipeline.command.options import BuildConfig, CodegenConfig
from pipeline.command.run import run_each
from pipeline.inspection import code_target, disassembler, launches, library, programs, sass
from pipeline.inspection.code_target import CodeTarget
from pipeline.inspection.cuda_code import CudaCode
from pipeline.inspection.launches import Launched
from pipeline.keys.identity import Identity
from pipeline.store.evidence import CodeRow
from tests.commands import exit_code
from tests.kernel_pipeline.toolchain.tiny import has_nvcc, needs_nvcc
from tests.planted import two_of_each
from tests.repository import commit, git


def softmax(provider: str, columns: int, **parameters: Value) -> Point:
    """Return a point of softmax in float32."""
    problem = Values({"rows": 4096, "columns": columns, "dtype": "float32"})
    return Point(kernel="softmax", provider=provider, problem=problem, parameters=Values(parameters))


ONLINE = softmax("triton_online", 4096, block_size=1024, num_warps=8)


def smallest(folder: Path, *options: str, kernel: str = "softmax") -> list[str]:
    """Return the command's options for a kernel's smallest preset, with all output below a folder."""
    fixed = [f"kernel={kernel}", "preset=smoke", "device=cpu"]
    return [*fixed, f"output={folder}/results", f"artifacts={folder}/artifacts", *options]


@dataclass
class Said:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def said_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command in this process, where torch is already imported."""

    def run(*options: str, kernel: str = "softmax", folder: Path = tmp_path) -> Said:
        words = smallest(folder, *options, kernel=kernel)
        code = exit_code(run_each, "codegen", CodegenConfig, codegen.run, *words)
        return Said(code, *capsys.readouterr())

    return run


def rows(folder: Path, kernel: str = "softmax") -> list[dict[str, Any]]:
    (path,) = (folder / "results/codegen" / kernel).glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_command_waits_for_no_compiler(tmp_path: Path, stop: signal.Signals) -> None:
    """Compiling the whole grid takes minutes. The timeout is far below that and measures nothing."""
    words = [
        "kernel=layernorm",
        "preset=standard",
        "device=cpu",
        f"output={tmp_path}",
        f"artifacts={tmp_path}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline.codegen", *words, "provider=triton_online"],
        cwd=ROOT,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "triton")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not list((tmp_path / "triton").rglob("*.ttir")):
            assert process.poll() is None
            time.sleep(0.1)
        compilers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, stop)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    if stop is signal.SIGKILL:
        assert process.returncode == -stop  # stderr may hold a warning of Python's resource tracker
    else:
        assert (process.returncode, errors) == (128 + stop, "")
    _, alive = psutil.wait_procs(compilers, timeout=120)
    assert alive == []


@pytest.mark.slow
def test_each_architecture_gets_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for three architectures in two processes, so that one process compiles the same launch
    twice."""
    monkeypatch.setattr(programs, "cpu_threads", lambda: 2)
    wanted = [(ONLINE, architecture) for architecture in ("80", "90", "100")]
    together = list(programs.compile_points("softmax", wanted))
    assert [one.architecture for one in together] == ["80", "90", "100"]
    for one in together:
        (program,) = one.programs
        assert f".target sm_{one.architecture}" in program.texts["ptx"]
        assert f'"cuda:{one.architecture}"' in program.texts["ttgir"]
        assert (program.threads, program.analysis.symbol) == (256, "_softmax_online")


def test_a_masked_row_load_is_wide_and_predicated_and_a_narrow_row_is_not_wide() -> None:
    wide, odd = softmax("triton_row", 4096, num_warps=4), softmax("triton_row", 37, num_warps=4)
    mixes = {}
    for one in programs.compile_points("softmax", [(wide, "90"), (odd, "90")]):
        (program,) = one.programs
        mixes[one.point] = sass.mix(program.analysis.instructions)
    loads = mixes[wide].global_loads_128
    assert loads == 4096 * 4 // 16 // 128, "128 threads load a row in 16-byte pieces"
    # A predicated exit may guard the last store instead.
    assert mixes[wide].predicated >= loads + mixes[wide].global_stores_128 - 1
    assert mixes[odd].global_loads_128 == 0 < mixes[odd].global_loads_32


def test_a_point_that_the_compiler_refuses_says_why() -> None:
    strange = softmax("triton_row", 4096, num_warps=3)
    (one,) = programs.compile_points("softmax", [(strange, "90")])
    assert one.programs == ()
    assert one.error is not None and "num_warps" in one.error


def test_a_lazy_run_without_a_gpu_compiles_for_none_and_keeps_what_is_there(
    tmp_path: Path, said_here: Run
) -> None:
    lazy = said_here("lazily=true", kernel="vector_add")
    assert (lazy.code, rows(tmp_path, "vector_add")) == (0, []), lazy.err
    assert (
        f"was left out. To compile it, run python -m pipeline.codegen kernel=vector_add output={tmp_path}"
        in lazy.out
    )
    assert said_here("provider=triton", "size=37", kernel="vector_add").code == 0
    made = rows(tmp_path, "vector_add")
    assert [row["architecture"] for row in made] == ["90"]
    assert said_here("lazily=true", kernel="vector_add").code == 0
    assert rows(tmp_path, "vector_add") == made
    assert (tmp_path / "artifacts" / made[0]["artifact"]).is_file()


def test_what_a_preset_leaves_out_is_looked_into_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's autotuning takes half a minute a problem, so preset quick leaves it out."""
    h100 = device.Device(kind="cuda", name="NVIDIA H100", uuid="GPU-planted")
    monkeypatch.setattr(codegen.device, "resolve", lambda _: h100)
    monkeypatch.setattr(codegen.device, "capabilities", lambda _: Gpu((9, 0), 132, 232448, 52428800))
    environment = fingerprint(device.cpu()).replace(compute_capability="9.0")
    monkeypatch.setattr(codegen, "fingerprint", lambda _: environment)
    found: list[set[str]] = []

    def planned(configs: Sequence[CodegenConfig]) -> None:
        points, shown = codegen.Codegen(configs[0], h100).points()
        found.append({point.provider for point in (*points, *shown)})

    for words in ([], ["provider=[torch_compile_max_autotune,triton_naive]"]):
        options = ["kernel=matmul", "preset=quick", *words]
        options += [f"output={tmp_path}/results", f"artifacts={tmp_path}/artifacts"]
        assert exit_code(run_each, "codegen", CodegenConfig, planned, *options) == 0
    usual, asked = found
    assert "torch_compile_max_autotune" not in usual and {"torch_compile", "triton_naive"} < usual
    assert asked == {"torch_compile_max_autotune", "triton_naive"}


@pytest.mark.slow
@pytest.mark.xdist_group("square/cuda.cu")  # the group of the tests that need this library built
@needs_nvcc
def test_the_assemblers_own_report_and_the_library_agree() -> None:
    """ptxas's report and the library agree about registers, static shared memory and spills."""
    loaded = loading.load("square")
    found = library.library_of(loaded, "cuda.cu")
    told = {(row.symbol, row.architecture): row for row in resources(Place.for_kernel(loaded), "cuda.cu")}
    seen = 0
    for architecture in found.architectures:
        functions, texts = found.functions(architecture)
        assert set(texts) == {f"cuda-sm_{architecture}.sass", f"cuda-sm_{architecture}.ptx"}
        for function in functions:
            row = told[function.analysis.symbol, f"sm_{architecture}"]
            used = function.analysis.resources
            assert (used.registers, used.shared, used.stack) == (row.registers, row.shared, row.stack)
            assert function.mix.spill_store_bytes == row.spill_stores
            assert function.ptx is not None and function.ptx.symbol == row.symbol
            seen += 1
    assert seen == len(told) > 0
    assert found.compiler == f"nvcc {find_nvcc().version}"


@pytest.mark.slow
def test_the_listing_of_one_variant(tmp_path: Path, said_here: Run) -> None:
    options = ("provider=triton_online", "block_size=1024", "num_warps=8")
    done = said_here(*options)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("softmax/triton_online float32 1024x8w, sm_90: _softmax_online (triton ")
    assert ".entry _softmax_online(u64, u64, u64, u64, u64, u64) .reqntid 256" in lines
    assert "declares virtual registers:" in done.out
    load = next(i for i, line in enumerate(lines) if "x + column, mask=column < columns" in line)
    assert lines[load].startswith("kernels/softmax/triton.py:")
    block = lines[load : lines.index("", load)]
    assert any("global load of " in line and "only where %p" in line for line in block)
    exchange = next(i for i, line in enumerate(lines) if "// reduction: exchange within the warp" in line)
    above = next(line for line in reversed(lines[:exchange]) if not line.startswith(" "))
    assert above.startswith("kernels/softmax/triton.py:") and "tl.max(" in above
    assert (
        "Choose by size=, rows=, columns=, dtype=, block_size=, num_warps=, architectures=, function=;"
        in done.out
    )
    assert str(ROOT) not in done.out

    found = rows(tmp_path)
    assert {(row["point"]["provider"], row["architecture"]) for row in found} == {("triton_online", "90")}
    assert all(row["point"]["parameters"] == {"block_size": 1024, "num_warps": 8} for row in found)
    for row in found:
        listing = tmp_path / "artifacts" / row["artifact"]
        for kind in ("txt", "ptx", "sass", "ttgir", "llir"):
            assert str(ROOT) not in listing.with_suffix(f".{kind}").read_text()
        assert 16 <= row["registers"] <= 255
        assert row["threads"] == 256
        assert 0 < row["occupancy"] <= 1

    machine_code = said_here(*options, "show=sass").out
    assert "== SASS" in machine_code and "== PTX" not in machine_code
    by_line = said_here(*options, "show=lines").out.partition("== LINES")[2].splitlines()
    counts = [
        int(line.split()[0]) for line in by_line if line.endswith("instructions") or " instructions, " in line
    ]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == found[0]["mix"]["instructions"]
    stages = said_here(*options, "show=llir").out
    assert (
        "== LLIR" in stages
        and "define ptx_kernel void @_softmax_online(" in stages
        and "== PTX" not in stages
    )
    assert "(code inlined from triton/language/standard.py stands under the lines of that" in machine_code


def test_a_row_has_the_key_of_the_ledgers_row(tmp_path: Path, said_here: Run) -> None:
    """The key equals the key that a sweep with the same options writes."""
    assert said_here("provider=triton_row", "size=64").code == 0
    (row,) = rows(tmp_path)
    timing = TimingSettings(min_samples=5, max_seconds=0.05)
    identity = Identity(loading.load("softmax"), fingerprint(device.resolve("cpu")), timing, 0)
    assert row["key"] == identity.key(Point.from_dict(row["point"]))
    assert row["native"] is False, "a CPU runs none of it"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["provider=torch"], "torch of softmax has no code to show here"),
        (["provider=cpp"], "cpp of softmax has no code to show here"),
        (["provider=liger"], "liger of softmax has no code to show here"),
        (["provider=trition_row"], "Did you mean 'triton_row'?"),
        (["provider=triton_row", "size=131072"], "one block holds a row: 131072 columns > 65536"),
        (["architectures=foo"], "architectures: unknown architecture 'foo'. Known: 80, 86, "),
        (["architectures=[90,91]"], "architectures: unknown architecture '91'."),
        (["show=llvm"], "show: input should be 'ptx', 'sass', 'lines', 'ttgir' or 'llir', not 'llvm'"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], said: str, said_here: Run) -> None:
    done = said_here(*options)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1


def of_planted(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test as slow and put it into the planted kernel's xdist group, which builds its libraries
    once."""
    return pytest.mark.slow(pytest.mark.xdist_group("two_of_each")(test))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Build the planted kernel's libraries, if nvcc is there. Their manifests also hold for copies of the
    kernel in other folders."""
    if not has_nvcc():
        return None
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extension, "WORK", folder)
        patch.setattr(extension, "_capabilities", list)
        loaded = loading.load(str(two_of_each.write(folder)))
        extension.build(Place.for_kernel(loaded), extension.sources(loaded), ["80", "90"])
        return Place.for_kernel(loaded).output


@pytest.fixture
def planted(tmp_path: Path, built: Path | None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a kernel outside the repository, whose libraries are below the test's folder."""
    monkeypatch.setattr(extension, "WORK", tmp_path)
    monkeypatch.setattr(extension, "_capabilities", list)
    folder = two_of_each.write(tmp_path)
    if built is not None:
        shutil.copytree(built, Place.for_kernel(loading.load(str(folder))).output)
    return folder


class Work:
    """The rows, texts and output of one run of the command."""

    def __init__(self, folder: Path, out: str) -> None:
        self.out = out
        self.rows = rows(folder, "two_of_each")
        self.texts = {path.name: path.read_bytes() for path in folder.glob("artifacts/codegen/*/*/*")}

    @property
    def nothing(self) -> bool:
        return "Nothing to compile: " in self.out

    def by_origin(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the rows by provider, and the rows of CUDA functions by source file."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row.get("source") or row["point"]["provider"], []).append(row)
        return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def run(tmp_path: Path, planted: Path, said_here: Run) -> Callable[..., Work]:
    """Return a function that runs the command on the planted kernel, which must succeed."""

    def succeed(*options: str, folder: Path = tmp_path) -> Work:
        done = said_here(*options, kernel=str(folder / planted.name), folder=folder)
        assert done.code == 0, done.err
        return Work(folder, done.out)

    return succeed


@of_planted
@needs_nvcc
def test_a_kernel_of_several_files_of_any_names_is_taken_apart(
    tmp_path: Path, run: Callable[..., Work]
) -> None:
    work = run()
    found = work.by_origin()
    assert found.keys() == {"left", "right", "fused", "odd-name.cu", "halves.cu"}
    assert len(found["left"]) == len(found["right"]) == 2 * 3 * 2, "problems by pieces"
    assert {row["language"] for row in work.rows} == {"triton", "cuda", "inductor"}
    assert all(row.get("error") is None for row in work.rows), work.rows
    texts = work.texts
    assert all(len(texts[Path(row["artifact"]).name]) > 300 for row in work.rows)
    (inductor_row,) = found["fused"]
    assert (
        f"{inductor_row['function']} = async_compile." in texts[Path(inductor_row["artifact"]).name].decode()
    )
    assert inductor_row["point"]["problem"] == {"n": 1000, "kind": "float32"}, "the middle one"
    threads = {name: found[name][0]["threads"] for name in ("odd-name.cu", "halves.cu")}
    assert threads == {"odd-name.cu": 128, "halves.cu": library.USUAL_THREADS}
    for name in threads:
        of_functions = [
            (row.get("point"), row.get("key"), row.get("launch_known", False)) for row in found[name]
        ]
        assert of_functions == [(None, None, False)]
    left = (tmp_path / "artifacts" / found["left"][0]["artifact"]).read_text()
    assert left.splitlines()[0].startswith("two_of_each/left float32 128p, sm_90: _left (triton ")
    assert "two_of_each/left_hand.py:" in left and "x_ptr + at, mask=at < n" in left
    halves = (tmp_path / "artifacts" / found["halves.cu"][0]["artifact"]).read_text()
    assert "two_of_each/halves.cu:" in halves and "out[i] = x[i] * T(0.5);" in halves
    assert not [name for name, text in texts.items() if str(tmp_path).encode() in text]


@of_planted
@needs_nvcc
def test_a_kernel_is_left_as_it_is_until_its_code_options_or_texts_change(
    tmp_path: Path, planted: Path, run: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("piece=128", "kind=float32", "provider=[left,right,blocks]")
    first = run(*few)
    again = run(*few)
    assert again.nothing and (again.rows, again.texts) == (first.rows, first.texts)

    edit(planted / "left_hand.py", "half(x), mask", "half(x) + 1, mask")
    before, after = first.by_origin(), (edited := run(*few)).by_origin()
    assert not edited.nothing
    assert {name for name in before if before[name] != after[name]} == {"left"}
    assert not {row["key"] for row in before["left"]} & {row["key"] for row in after["left"]}
    changed = {name for name, text in edited.texts.items() if text != first.texts[name]}
    assert changed and all(name.startswith("left-") for name in changed)
    edit(planted / "helpers.py", "    return x * 0.5", "    # A comment.\n    return x * 0.5")
    assert run(*few).nothing

    edit(planted / "odd-name.cu", "T(0.5)", "T(0.25)")
    cuda = run(*few)
    assert not cuda.nothing and cuda.by_origin()["odd-name.cu"] != after["odd-name.cu"]

    libraries = ("n=4096", "kind=float32", "provider=[blocks,grids]")
    pinned = run(*libraries)
    assert pinned.by_origin().keys() == {"odd-name.cu", "halves.cu"}
    assert {name.partition("-")[0] for name in pinned.texts} == {"odd", "halves"}, "others' texts went"
    (tmp_path / "artifacts" / pinned.rows[0]["artifact"]).unlink()
    assert not run(*libraries).nothing and run(*libraries).nothing
    assert len(run("architectures=[80,90]", *libraries).rows) == 2 * len(pinned.rows)
    monkeypatch.setattr(code_target, "READER", "another way to disassemble")
    code_target.reader.cache_clear()
    assert not run(*libraries).nothing
    code_target.reader.cache_clear()


@of_planted
@needs_nvcc
def test_a_clone_knows_by_its_rows_and_the_builds_report_that_there_is_nothing_to_compile(
    tmp_path: Path, planted: Path, run: Callable[..., Work], said_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(Place.for_kernel(loading.load(str(planted))).output)
    monkeypatch.setattr(build.inductor, "is_tried", lambda: True)
    words = (f"kernel={planted}", "device=cpu", f"output={tmp_path}/results", "architectures=[90]")
    assert exit_code(run_each, "build", BuildConfig, build.run, *words) == 0
    few = ("kind=float32", "piece=128", "provider=[left,blocks,grids]")
    first = run(*few)
    commit(tmp_path, "results", planted.name)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", ".", str(clone))
    monkeypatch.setattr(extension, "WORK", clone)
    cloned = run(*few, folder=clone)
    assert cloned.nothing and cloned.rows == first.rows and not cloned.texts
    assert not (clone / "build").exists()

    # Asking for a listing builds its library.
    shown = run("provider=grids", folder=clone)
    assert {path.name for path in clone.rglob("*.so")} == {"halves.so"}
    assert shown.rows == [row for row in first.rows if row.get("source") == "halves.cu"]

    # A report with wrong inputs is not used for any row.
    shutil.rmtree(clone / "build")
    (report,) = (clone / "results/build/two_of_each").glob("*.json")
    content = json.loads(report.read_text())
    content["made_of"]["halves.cu"]["inputs"] = {}
    report.write_text(json.dumps(content))
    wrong = said_here("provider=grids", kernel=str(clone / planted.name), folder=clone)
    assert wrong.code == 2
    assert "two_of_each/halves.cu was built from other files than its build report names" in wrong.err


@of_planted
@needs_nvcc
def test_a_library_that_lacks_an_architecture_is_named(tmp_path: Path, planted: Path, said_here: Run) -> None:
    alone = said_here("provider=blocks", "architectures=86", kernel=str(planted))
    said = "the library of two_of_each/odd-name.cu has no code for sm_86: `python -m pipeline.build kernel="
    assert (alone.code, alone.err.count("\n")) == (2, 1)
    assert alone.err.startswith(f"error: {said}{planted} 'architectures=[80,90,86]'` adds it.")
    options = ("provider=[left,blocks]", "n=64", "piece=128", "architectures=[sm_86,9.0]")
    done = said_here(*options, kernel=str(planted))
    assert done.code == 0, done.err
    assert said in done.out
    kinds = {(row["language"], row["architecture"]) for row in rows(tmp_path, "two_of_each")}
    assert kinds == {("triton", "86"), ("triton", "90"), ("cuda", "90")}

    unknown = said_here("provider=blocks", "function=nosuch", kernel=str(planted))
    assert unknown.code == 2
    assert (
        "no CUDA function of two_of_each has 'nosuch' in its name: there are by_block<float>." in unknown.err
    )
    unknown = said_here("provider=left", "function=nosuch", kernel=str(planted))
    assert unknown.code == 2
    assert "no function of two_of_each has 'nosuch' in its name: there are " in unknown.err


@of_planted
@needs_nvcc
def test_a_source_that_does_not_compile_leaves_the_others(
    tmp_path: Path, planted: Path, said_here: Run
) -> None:
    (planted / "odd-name.cu").write_text("__global__ int f() {}\n")
    done = said_here("provider=[left,blocks,grids]", "n=64", kernel=str(planted))
    assert done.code == 0, done.err
    assert "The functions of odd-name.cu were left out: two_of_each/odd-name.cu does not compile:" in done.out
    found = {row.get("source") or row["point"]["provider"] for row in rows(tmp_path, "two_of_each")}
    assert found == {"left", "halves.cu"}
    alone = said_here("provider=blocks", kernel=str(planted))
    assert alone.code == 2
    assert alone.err.startswith("error: two_of_each/odd-name.cu does not compile:")


def target_of_gpu(planted: Path, tmp_path: Path) -> CodeTarget:
    """Return the target for a kernel on a made-up GPU."""
    loaded = loading.load(str(planted))
    environment = fingerprint(device.resolve("cpu")).replace(compute_capability="9.0")
    identity = Identity(loaded, environment, TimingSettings(min_samples=5, max_seconds=0.05), 0)
    gpu = device.Device(kind="cuda", name="Planted GPU", uuid="GPU-planted")
    return CodeTarget(loaded, identity, gpu, ("90",), None, tmp_path / "artifacts", None)


def code_of(target: CodeTarget, warn: Callable[[str], None]) -> CudaCode:
    return CudaCode(target, code_target.Texts(target), warn)


@of_planted
@needs_nvcc
def test_launches_are_rows_of_their_points_and_unknown_ones_are_said(tmp_path: Path, planted: Path) -> None:
    """The launches are made up, in the form that a GPU reports them."""
    target = target_of_gpu(planted, tmp_path)
    loaded, identity = target.loaded, target.identity
    said: list[str] = []
    made = code_of(target, said.append)
    found = library.library_of(loaded, "odd-name.cu")
    (function,), _ = found.functions("90")
    several, other, refused = (
        Point(kernel="two_of_each", provider="blocks", problem=Values({"n": n, "kind": "float32"}))
        for n in (1, 2, 3)
    )
    launches = {
        identity.key(several): [
            Launched(None, "void at::native::copy<float>(float*)", 64, 0),
            Launched(function, function.name, 96, 1000, "by_block"),
        ],
        identity.key(other): [Launched(None, "renamed<float>", 64, 0)],
        identity.key(refused): [],
    }
    (row,) = made.of_launches(found, [function], [several, other, refused], launches)
    assert (row.point, row.function, row.key, row.native) == (
        several,
        "by_block<float>",
        identity.key(several),
        True,
    )
    assert (row.threads, row.shared, row.strategy, row.launch_known) == (96, 1000, "by_block", True)
    (sentence,) = said
    assert (
        "CUDA points without a row: 1, for example blocks-float32-2. They launch renamed<float>" in sentence
    )
    assert CodeRow.from_json(row.to_json().decode()) == row


@of_planted
@needs_nvcc
def test_launches_that_fail_beside_others_are_tried_alone(
    tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launches are made up, in the form that a GPU reports them."""
    target = target_of_gpu(planted, tmp_path)
    loaded = target.loaded
    made = code_of(target, print)
    found = library.library_of(loaded, "odd-name.cu")
    (function,), _ = found.functions("90")
    one, other = (
        Point(kernel="two_of_each", provider="blocks", problem=Values({"n": n, "kind": "float32"}))
        for n in (1, 2)
    )
    seen = launches.DeviceLaunch(
        name=function.name, threads=64, blocks=1, registers=8, shared=0, duration_us=1.0
    )
    asked: list[tuple[bool, list[Point]]] = []

    def observe(
        where: str, points: list[tuple[str, Point]], seed: int
    ) -> dict[str, list[launches.DeviceLaunch]]:
        try:
            with DeviceLock(target.device, 0, print, shared=True):
                alone = False
        except UserError:
            alone = True
        asked.append((alone, [point for _, point in points]))
        # The second point runs out of memory while other points share the GPU.
        return {key: [seen] for key, point in points if alone or point == one}

    monkeypatch.setattr(launches, "observe", observe)
    monkeypatch.setattr(launches, "reported", lambda *_: {})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = made.rows([one, other], alone=True)
    assert [row.point for row in rows] == [None, one, other]
    assert asked == [(False, [one, other]), (True, [other])]


@needs_nvcc
def test_functions_whose_names_have_the_same_words_have_texts_of_their_own() -> None:
    recipe = extension.Recipe(flags=(), architectures=("90",), compilers=(), torch="", torch_cuda=None)
    made = library.CudaLibrary(loading.load("square"), "cuda.cu", extension.Made(recipe=recipe, inputs={}))
    some = ["f<-1>", "f<1>", "g<1>", f"h<{'long, ' * 60}1>"]
    names = code_target.text_names(made, some, "90")
    assert names["g<1>"] == "cuda-g-1-sm_90"
    assert len(set(names.values())) == 4
    assert max(map(len, names.values())) <= code_target.LONGEST_NAME


def test_without_the_tools_one_sentence_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembler, "_folders", lambda: iter(()))
    disassembler.find_tools.cache_clear()
    with pytest.raises(UserError, match=r"pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm\."):
        disassembler.find_tools()
    disassembler.find_tools.cache_clear()


def test_what_is_no_cubin_is_refused(tmp_path: Path) -> None:
    (tmp_path / "foreign.cubin").write_bytes(b"no machine code")
    with pytest.raises(UserError, match=r"nvdisasm can't read .*foreign\.cubin"):
        disassembler.find_tools().analyse(tmp_path / "foreign.cubin", "90")
