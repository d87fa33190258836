"""What a call launched, by a library and by Triton that are stood in for."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton.runtime.jit

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from pipeline.execution import launch_recorder
from pipeline.execution.instance import Instance
from pipeline.execution.launch_recorder import recorded
from pipeline.store.record import Launch

LAUNCH = {
    "function": "register_resident_rows<float, 4>",
    "strategy": "register_resident",
    "grid": [4096, 1, 1],
    "block": [128, 1, 1],
}


def instance(language: str, library: Path | None = None) -> Instance:
    provider = Provider("planted", "planted.py:f", language=language)
    return Instance(loading.load("softmax"), provider, None, lambda: None, library)


class Library:
    """Stands in for one that reports what it launches, while it is told to."""

    def __init__(self) -> None:
        self.recording = False
        self.launched: list[dict[str, Any]] = []

    def record(self, on: int) -> None:
        self.recording = bool(on)
        if on:
            self.launched.clear()

    def told(self) -> bytes:
        return json.dumps(self.launched).encode()

    def launch(self) -> None:
        if self.recording:
            self.launched.append(LAUNCH)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(launch_recorder, "_reporting", lambda path: (made.record, made.told))
    return made


def test_a_library_reports_what_was_launched_within(library: Library) -> None:
    library.launch()
    with recorded(instance("cuda", Path("planted.so"))) as told:
        library.launch()
        library.launch()
    library.launch()
    assert told() == (Launch.model_validate(LAUNCH),) * 2
    assert not library.recording


def test_a_call_that_fails_leaves_nothing_recording(library: Library) -> None:
    with pytest.raises(RuntimeError, match="planted"), recorded(instance("cuda", Path("planted.so"))):
        raise RuntimeError("planted")
    assert not library.recording


def test_no_launch_is_none(library: Library) -> None:
    with recorded(instance("cuda", Path("planted.so"))) as told:
        pass
    assert told() is None


@pytest.mark.parametrize("language", ["torch", "cpp", "numba"])
def test_who_does_not_tell_is_none(language: str) -> None:
    with recorded(instance(language, Path("nowhere.so"))) as told:
        pass
    assert told() is None


SOURCE = """
extern "C" {
#ifdef REPORTS
static int on = 0;
void kernels_record_launches(int wanted) { on = wanted; }
const char* kernels_recorded_launches() { return on ? "[1]" : "[{\\"function\\": \\"f\\"}]"; }
#endif
int unrelated() { return 1; }
}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def built(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("library")
        (folder / "planted.cpp").write_text(SOURCE)
        words = ["c++", "-shared", "-fPIC", *flags, "planted.cpp", "-o", "planted.so"]
        subprocess.run(words, cwd=folder, check=True)
        return folder / "planted.so"

    return built


def test_a_real_librarys_functions_are_found_and_one_without_them_tells_nothing(
    build: Callable[..., Path],
) -> None:
    record, told = launch_recorder._reporting(build("-DREPORTS"))
    record(1)
    assert told() == b"[1]"
    record(0)
    assert told() == b'[{"function": "f"}]'
    silent = build()
    assert ctypes.CDLL(str(silent)).unrelated() == 1
    record, told = launch_recorder._reporting(silent)
    record(1)
    assert told() == b"[]"
    with recorded(instance("cuda", silent)) as launched:
        pass
    assert launched() is None


class JITFunction:
    """Stands in for Triton's: a launch compiles, and asks the grid for its blocks as Triton does."""

    metadata = SimpleNamespace(
        name="_softmax_row", num_warps=8, shared=1024, num_stages=3, cluster_dims=(2, 1, 1)
    )

    def run(self, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if callable(grid):
            grid({"BLOCK": 2} | options)
        return SimpleNamespace(metadata=self.metadata)


@pytest.fixture
def triton_function(monkeypatch: pytest.MonkeyPatch) -> Iterator[JITFunction]:
    monkeypatch.setattr(triton.runtime.jit, "JITFunction", JITFunction)
    run = JITFunction.run
    yield JITFunction()
    assert JITFunction.run is run, "Triton is left as it was"


@pytest.mark.parametrize("language", ["triton", "gluon"])
@pytest.mark.parametrize(
    ("grid", "blocks"),
    [
        ((4096,), (4096, 1, 1)),
        ((4, 2), (4, 2, 1)),
        ([4, 2, 3], (4, 2, 3)),
        (lambda meta: (meta["BLOCK"],), (2, 1, 1)),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_triton_tells_all_of_a_launch(
    triton_function: JITFunction, language: str, grid: Any, blocks: tuple[int, ...]
) -> None:
    triton_function.run(grid=(1,), warmup=False)
    with recorded(instance(language)) as told:
        compiled = triton_function.run(1, 2, grid=grid, warmup=False)
        triton_function.run(1, 2, grid=grid, warmup=True)
    triton_function.run(grid=(1,), warmup=False)
    assert compiled.metadata.name == "_softmax_row", "the caller gets what it would get"
    assert told() == (
        Launch(
            function="_softmax_row",
            grid=blocks,
            block=(256, 1, 1),
            cluster=(2, 1, 1),
            shared_bytes=1024,
            stages=3,
        ),
    )


def test_a_triton_call_that_fails_leaves_triton_as_it_was(triton_function: JITFunction) -> None:
    with pytest.raises(RuntimeError, match="planted"), recorded(instance("triton")):
        raise RuntimeError("planted")
