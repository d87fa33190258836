"""C++ and CUDA providers without the pipeline: what is built when, and what is said where it can't be."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_pipeline import loading, ops
from kernel_pipeline.machine import compilers
from kernel_pipeline.machine.compilers import NoCompilerError
from kernel_pipeline.ops import build, native, overhead
from kernel_pipeline.toolchain import extension

pytestmark = pytest.mark.xdist_group("vector_add/cpp.cpp")

ADD = loading.load("vector_add")
CPP = "cpp.cpp"

PLAIN = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
using torch::stable::Tensor;
Tensor same(const Tensor& x) { return torch::stable::contiguous(x); }
STABLE_TORCH_LIBRARY_FRAGMENT(plain, m) { m.def("cpp(Tensor x) -> Tensor"); }
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(native.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built() -> Path:
    """The pipeline's own library."""
    place = extension.Place.for_kernel(ADD)
    return extension.build(place, [CPP])[CPP].path


def test_what_the_pipeline_built_is_taken(built: Path, cache: Path) -> None:
    assert native.library(ADD, CPP) == built
    assert not cache.exists()
    native.load(ADD, CPP)
    assert native.is_there(ADD, CPP)
    native.load(ADD, CPP)  # its operators are there: defining them twice would be an error


@pytest.mark.parametrize("part", ["inputs", "library", "recipe"])
def test_but_not_once_it_is_of_something_else(
    part: str, built: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "build" / "vector_add" / built.name
    copy.parent.mkdir(parents=True)
    shutil.copy(built, copy)
    told = json.loads(built.with_suffix(".json").read_text())
    monkeypatch.setattr(native, "BUILT", tmp_path / "build")
    copy.with_suffix(".json").write_text(json.dumps(told))
    assert native.library(ADD, CPP) == copy
    if part == "inputs":
        told["inputs"] = dict.fromkeys(told["inputs"], "0" * 64)
    elif part == "recipe":
        told["recipe"]["torch"] = "1.0"
    else:
        copy.write_bytes(b"spoilt")
    copy.with_suffix(".json").write_text(json.dumps(told))
    monkeypatch.setattr(native, "_compiled", lambda *_: Path("compiled"))
    assert native.library(ADD, CPP) == Path("compiled")
    copy.with_suffix(".json").write_text("{}")
    assert native.library(ADD, CPP) == Path("compiled")


def of_source(folder: Path, text: str) -> loading.Loaded:
    """A kernel outside of the repository with one C++ provider."""
    (folder / "plain").mkdir()
    (folder / "plain" / "__init__.py").write_text(
        (loading.ROOT / "square" / "__init__.py")
        .read_text()
        .replace("cuda.py:cuda_naive", "cuda.cu:naive")
        .replace("from ..", "from kernels.")
    )
    (folder / "plain" / CPP).write_text(text)
    return loading.load(str(folder / "plain"))


def test_a_library_is_compiled_once_and_again_after_an_edit(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def pretended(words: Any, **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(list(words))
        Path(words[words.index("-o") + 1]).write_text("made")
        return subprocess.CompletedProcess(words, 0, "", "")

    loaded = of_source(tmp_path, PLAIN)
    cxx = compilers.Cxx(Path("c++"), "1")
    monkeypatch.setattr(compilers, "find_cxx", lambda: cxx)
    monkeypatch.setattr(native.subprocess, "run", pretended)
    first = native.library(loaded, CPP)
    assert first.read_text() == "made" and first.is_relative_to(cache)
    assert native.library(loaded, CPP) == first and len(calls) == 2
    assert set(compilers.CXX_FLAGS) <= set(calls[0])
    (tmp_path / "plain" / CPP).write_text(PLAIN + "// more\n")
    assert native.library(loaded, CPP) != first and len(calls) == 4
    assert [path.name for path in first.parent.iterdir() if path.name != "lock"] == ["cpp.so"]


def test_a_source_that_does_not_compile_is_one_sentence(tmp_path: Path, cache: Path) -> None:
    loaded = of_source(tmp_path, "no C++\n")
    with pytest.raises(native.NotThereError, match=r"plain/cpp\.cpp does not compile; .* says why\.") as told:
        native.library(loaded, CPP)
    log = Path(str(told.value).split("; ")[1].removesuffix(" says why."))
    assert log.is_relative_to(cache) and "error" in log.read_text()


def test_without_a_compiler_torch_is_called(
    cache: Path, monkeypatch: pytest.MonkeyPatch, chosen: Callable[..., list[Any]]
) -> None:
    def nowhere() -> compilers.Cxx:
        raise NoCompilerError(compilers.NO_CXX)

    monkeypatch.setattr(compilers, "find_cxx", nowhere)
    monkeypatch.setattr(native, "BUILT", Path("nowhere"))
    monkeypatch.setattr(native, "is_there", lambda *_: False)
    chosen("cpp")
    with pytest.warns(
        UserWarning, match=r"vector_add: cpp can't be used, so torch is called: no C\+\+ compiler"
    ):
        assert torch.equal(ops.vector_add(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))


def test_cuda_needs_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this host has one")
    with pytest.raises(native.NotThereError, match="needs a GPU, and torch sees none"):
        native.library(ADD, "cuda.cu")


def test_code_for_a_gpu_is_told_from_code_for_another() -> None:
    assert native._runs(["80", "90"], "89") and not native._runs(["90"], "100")
    wgmma = loading.load("matmul")
    assert native._architecture(wgmma, "wgmma.cu", "90") == "90a"
    assert native._architecture(wgmma, "wgmma.cu", "100") == "100"
    assert native._architecture(wgmma, "cuda.cu", "90") == "90"


def test_the_command_builds_and_says_so(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = build.main(["vector_add"])
    out = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"vector_add/cpp.cpp: {built}") for line in out)
    assert code == (0 if torch.cuda.is_available() else 1)
    assert build.main(["nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: nothing is not a kernel; the kernels are attention, ")


def test_the_hosts_cost_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overhead, "BATCHES", 1)
    monkeypatch.setattr(overhead, "FEWEST", 2)
    monkeypatch.setattr(overhead, "MOST", 2)
    overhead.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ops.names()
