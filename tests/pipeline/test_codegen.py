"""Generated code, for real: Triton, nvcc and Inductor compile, the tools take apart, the command shows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernels.point import Point
from pipeline import codegen
from pipeline.config import ROOT, CodegenConfig, run_stage
from pipeline.measure import code, disassembler, grid, launches, library, programs
from pipeline.measure.resources import resources
from pipeline.measure.toolchain import find_nvcc
from tests.pipeline.measure.tiny import needs_nvcc

ONLINE = Point("softmax", "triton_online", 4096, "float32", 1024, 8)


def smallest(folder: Path, *options: str) -> list[str]:
    """Options of the command: the smallest grid of softmax, written below a folder."""
    fixed = ["kernel=softmax", "preset=smoke", "device=cpu"]
    return [*fixed, f"output={folder}/results", f"artifacts={folder}/artifacts", *options]


def command(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``python -m pipeline.codegen``, for what would find Inductor at work already in this process."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline.codegen", *smallest(folder, *options)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "140"},
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def said_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The same command in this process, which has torch imported already."""

    def run(*options: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["codegen", *smallest(tmp_path, *options)])
        with pytest.raises(SystemExit) as ended:
            run_stage("codegen", CodegenConfig, codegen.run)
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capsys.readouterr())

    return run


def rows(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "results/codegen/softmax").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_waits_for_no_compiler(tmp_path: Path, stop: signal.Signals) -> None:
    """The whole grid takes minutes; a bound far below that is no measurement."""
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
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, errors) == (128 + stop, "")
    _, alive = psutil.wait_procs(compilers, timeout=10)
    assert alive == []


def test_each_architecture_gets_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three architectures in two processes: one compiles the same launch for one after the other."""
    monkeypatch.setattr(programs, "cpu_threads", lambda: 2)
    monkeypatch.setattr(programs, "TASKS_A_PROCESS", 1)
    together = list(programs.compile_points([ONLINE], ["80", "90", "100"]))
    assert [one.architecture for one in together] == ["80", "90", "100"]
    for one in together:
        (program,) = one.programs
        assert f".target sm_{one.architecture}" in program.texts["ptx"]
        assert f'"cuda:{one.architecture}"' in program.texts["ttgir"]
        assert (program.threads, program.analysis.symbol) == (256, "_softmax_online")


def test_a_masked_row_load_is_wide_and_predicated_and_a_narrow_row_is_not_wide() -> None:
    wide = Point("softmax", "triton_row", 4096, "float32", None, 4)
    odd = Point("softmax", "triton_row", 37, "float32", None, 4)
    mixes = {}
    for one in programs.compile_points([wide, odd], ["90"]):
        (program,) = one.programs
        row = code.used(program.analysis, "90", program.threads, program.shared)
        mixes[one.point.size] = row["mix"]
    assert mixes[4096].global_loads_128 == 4096 * 4 // 16 // 128, "128 threads load a row in 16-byte pieces"
    # The last store may stand behind an exit instead.
    assert mixes[4096].predicated >= mixes[4096].global_loads_128 + mixes[4096].global_stores_128 - 1
    assert mixes[37].global_loads_128 == 0 < mixes[37].global_loads_32


def test_a_point_that_the_provider_refuses_says_why() -> None:
    (one,) = programs.compile_points([Point("softmax", "triton_row", 2**17, "float32", None, 4)], ["90"])
    assert one.programs == ()
    assert one.error == "one block holds a row: 131072 columns > 65536"


@needs_nvcc
def test_the_assemblers_own_report_and_the_library_agree() -> None:
    """Registers, static shared memory and spills, told twice: by ptxas as it compiled, and by the library."""
    found = library.functions_of("softmax", ["80", "90"])
    told = {
        (row.symbol, row.architecture.removeprefix("sm_")): row
        for row in resources("softmax")
        if row.architecture in ("sm_80", "sm_90")
    }
    assert len(found.functions) == len(told) > 0
    for function in found.functions:
        row = told[function.analysis.symbol, function.architecture]
        used = function.analysis.resources
        assert (used.registers, used.shared, used.stack) == (row.registers, row.shared, row.stack)
        mix = code.used(function.analysis, function.architecture, 128, 0)["mix"]
        assert mix.spill_store_bytes == row.spill_stores
        assert function.ptx is not None and function.ptx.symbol == row.symbol
    assert found.compiler == f"nvcc {find_nvcc().version}"


def test_names_of_a_function_agree_whoever_writes_them() -> None:
    written = (
        "void softmax::softmax_rows<c10::BFloat16, (int)8, (bool)1>(const T1 *, T1 *, long, long, long, int)",
        "softmax::softmax_rows<c10::BFloat16, 8, true>",
        "void softmax::softmax_rows<c10::BFloat16, 8, true>(c10::BFloat16 const*, c10::BFloat16*, long)",
    )
    assert {library.known_name(name) for name in written} == {"softmax_rows<BFloat16, 8, 1>"}
    assert (
        library.known_name("void at::<unnamed>::rows<float, at::<unnamed>::Sum>(T1 *)") == "rows<float, Sum>"
    )
    nested = (
        "void kernels::rows_held<float, 4, 2, true, layernorm::LayerNorm<float> >(kernels::Matrix<float>)",
        "void kernels::rows_held<float, 4, 2, (bool)1, layernorm::LayerNorm<float>>(kernels::Matrix<T1>)",
    )
    assert {library.known_name(name) for name in nested} == {"rows_held<float, 4, 2, 1, LayerNorm<float>>"}


@needs_nvcc
def test_launches_are_joined_to_functions_and_unknown_ones_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As CUPTI spells them on a GPU, of which there is none here."""
    stages: list[codegen.Codegen] = []
    monkeypatch.setattr(sys, "argv", ["codegen", *smallest(tmp_path)])
    with pytest.raises(SystemExit):
        run_stage("codegen", CodegenConfig, lambda config: stages.append(codegen.Codegen(config)))
    (stage,) = stages
    stage.native = "90"
    found = library.functions_of("softmax", ["90"])
    function = found.functions[0]

    def launch(name: str) -> launches.Launch:
        return launches.Launch(name=name, threads=128, blocks=1, registers=0, shared=0, duration_us=1.0)

    spelled = f"void kernels::{function.name.replace('>', ' >')}(kernels::Matrix<float>)"
    several, other, refused = (Point("softmax", "cuda", 4096, "float32", 1024, warps) for warps in (4, 8, 16))
    made = {
        stage.key(several): [launch("void at::native::copy<float>(float*)"), launch(spelled)],
        stage.key(other): [launch("void kernels::renamed<float>(float*)")],
        stage.key(refused): [],
    }
    joined = stage.of_launches([several, other, refused], made, found)
    assert [(row.function, row.key) for row in joined] == [(function.name, stage.key(several))]
    said = " ".join(capsys.readouterr().out.split())
    assert "CUDA points without a row: 1, for example cuda-float32-1024x8w" in said
    assert "void kernels::renamed<float>(float*)" in said


def test_the_listing_of_one_variant(tmp_path: Path, said_here: Callable[..., Said]) -> None:
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
    assert str(ROOT) not in done.out

    found = rows(tmp_path)
    assert {(row["provider"], row["architecture"], row["num_warps"]) for row in found} == {
        ("triton_online", "90", 8)
    }
    for row in found:
        listing = tmp_path / "artifacts" / row["artifact"]
        for kind in ("txt", "ptx", "sass", "ttgir"):
            assert str(ROOT) not in listing.with_suffix(f".{kind}").read_text()
        assert 16 <= row["registers"] <= 255
        assert row["threads"] == 256
        assert 0 < row["occupancy"] <= 1

    machine_code = said_here(*options, "show=sass").out
    assert "== SASS" in machine_code and "== PTX" not in machine_code
    assert "(what was inlined from triton/language/standard.py stands under its lines" in machine_code


def test_a_row_has_the_key_of_the_ledgers_row(tmp_path: Path, said_here: Callable[..., Said]) -> None:
    """The key that a sweep with the same options would write: from point, sources, environment and timing."""
    from pipeline.measure import device
    from pipeline.measure.settings import TimingSettings

    assert said_here("provider=triton_row", "size=64").code == 0
    import kernels

    (row,) = rows(tmp_path)
    point = Point(*(row[name] for name in vars(ONLINE)))
    environment = device.fingerprint(device.resolve("cpu"))
    source = grid.source_digest("softmax", kernels.load("softmax").provider("triton_row"))
    timing = TimingSettings(min_samples=5, max_seconds=0.05)
    assert row["key"] == grid.key(point, source, environment.digest, timing, 0)
    assert row["native"] is False, "a CPU runs none of it"


@needs_nvcc
def test_every_kind_of_provider_is_there_and_the_texts_are_kept(tmp_path: Path) -> None:
    done = command(tmp_path, "size=64")
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path)
    assert {row["language"] for row in found} == {"triton", "cuda", "inductor"}
    assert all(row["error"] is None for row in found), found
    for row in found:
        assert (tmp_path / "artifacts" / row["artifact"]).stat().st_size > 500
    (inductor,) = [row for row in found if row["language"] == "inductor"]
    source = (tmp_path / "artifacts" / inductor["artifact"]).read_text()
    assert f"{inductor['function']} = async_compile." in source
    cuda = [row for row in found if row["language"] == "cuda"]
    assert all(row["key"] is None and not row["launch_known"] for row in cuda), "known on a GPU only"
    assert {row["function"] for row in cuda} >= {
        "rows_held<float, 4, 2, 1, 0, Softmax>",
        "rows_staged<Half, 8, 0, SoftmaxUnchanged>",
        "rows_streamed<BFloat16, 8, 2, 0, SoftmaxUnchanged>",
    }


def test_a_comparison_says_in_numbers_what_differs(tmp_path: Path, said_here: Callable[..., Said]) -> None:
    done = said_here("a=triton_row/8w", "b=triton_row/4w", "size=4096")
    assert done.code == 0, done.err
    table = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.split()}
    assert table["threads"] == ["256", "128", "-128"]
    registers = table["registers"]
    assert int(registers[1]) - int(registers[0]) == int(registers[2]) > 0
    assert "the same in both:" in done.out
    listings = {path.name for path in (tmp_path / "artifacts/codegen/softmax").glob("*/*.txt")}
    assert listings == {f"triton_row-float32-{w}w-4096-sm_90.txt" for w in (4, 8)}, "of both"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["provider=torch"], "torch of softmax has no code to show here"),
        (["provider=cpp"], "cpp of softmax has no code to show here"),
        (["provider=trition_row"], "Did you mean 'triton_row'?"),
        (["a=triton_online/1024x8w"], "a comparison needs both"),
        (["a=triton_row/4w", "b=trton_row/8w"], "unknown provider of softmax 'trton_row'."),
        (["provider=triton_row", "size=131072"], "one block holds a row: 131072 columns > 65536"),
        (["architectures=foo"], "architectures: unknown architecture 'foo'. Known: 80, 86, "),
        (["architectures=[90,91]"], "architectures: unknown architecture '91'."),
        (["a=triton_row/4w/sm_91", "b=triton_row/8w"], "'triton_row/4w/sm_91': architectures: unknown arch"),
        (["a=triton_row/4w", "b=triton_row/4w/float23"], "can't read 'float23' in 'triton_row/4w/float23': "),
        (["a=triton_online/1000x8w", "b=triton_row/4w"], "/1000x8w': block_size: must be a power of two, "),
        (["a=triton_online/1024x7w", "b=triton_row/4w"], "/1024x7w': num_warps: must be 1, 2, 4, 8, 16 or"),
        (
            ["a=triton_row/1024x8w", "b=triton_row/4w"],
            "'triton_row/1024x8w': triton_row takes no block_size.",
        ),
        (
            ["a=torch_compile", "b=triton_row/4w"],
            "what is kept of it is Inductor's source, which has no numbe",
        ),
        (["show=llvm"], "show: input should be 'ptx' or 'sass', not 'llvm'"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], said: str, said_here: Callable[..., Said]) -> None:
    done = said_here(*options)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1


@needs_nvcc
def test_an_architecture_that_the_library_lacks_is_named(
    tmp_path: Path, said_here: Callable[..., Said]
) -> None:
    alone = said_here("provider=cuda", "architectures=86")
    said = "the CUDA library of softmax has no code for sm_86: `python -m pipeline.build kernel=softmax "
    assert (alone.code, alone.err.count("\n")) == (2, 1)
    assert alone.err.startswith(f"error: {said}architectures=[80,")
    options = ("provider=[triton_row,cuda]", "size=64", "num_warps=4", "architectures=[sm_86,9.0]")
    done = said_here(*options)
    assert done.code == 0, done.err
    assert said in done.out
    assert {(row["language"], row["architecture"]) for row in rows(tmp_path)} == {
        ("triton", "86"),
        ("triton", "90"),
        ("cuda", "90"),
    }


@needs_nvcc
def test_an_ambiguous_cuda_function_is_asked_for(said_here: Callable[..., Said]) -> None:
    done = said_here("a=cuda/4w", "b=triton_row/4w")
    assert done.code == 2
    assert "rows_held<float, 4, 2, 1, 0, Softmax>" in done.err and "write one" in done.err
    assert "BFloat16" not in done.err and "Half" not in done.err, "it is about float32"
    named = said_here("a='cuda/4w/rows_held<float, 4, 2, 1, 0, Softmax>'", "b=triton_row/4w")
    assert named.code == 0, named.err


def test_without_the_tools_one_sentence_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.errors import UserError

    monkeypatch.setattr(disassembler, "_folders", lambda: iter(()))
    disassembler.find_tools.cache_clear()
    with pytest.raises(UserError, match=r"pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm\."):
        disassembler.find_tools()
    disassembler.find_tools.cache_clear()


def test_what_is_no_cubin_is_refused(tmp_path: Path) -> None:
    from pipeline.errors import UserError

    (tmp_path / "foreign.cubin").write_bytes(b"no machine code")
    with pytest.raises(UserError, match=r"nvdisasm can't read .*foreign\.cubin"):
        disassembler.find_tools().analyse(tmp_path / "foreign.cubin", "90")
