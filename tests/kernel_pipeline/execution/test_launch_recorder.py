"""What a call launched, by a real library and by Triton that is stood in for."""

import ctypes
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import triton.runtime.jit

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernel_pipeline.execution.instance import Instance
from kernel_pipeline.execution.launch_recorder import recorded, triton_launches
from kernel_pipeline.records.measurement import Launch

LAUNCH = {
    "function": "register_resident_rows<float, 4>",
    "strategy": "register_resident",
    "grid": [4096, 1, 1],
    "block": [128, 1, 1],
}


def instance(language: str, library: Path | None = None) -> Instance:
    provider = Provider("planted", "planted.py:f", language=language)
    return Instance(loading.load("softmax"), provider, None, lambda: None, library)


@pytest.mark.parametrize("language", ["torch", "cpp", "numba"])
def test_who_does_not_tell_is_none(language: str) -> None:
    with recorded(instance(language, Path("nowhere.so"))) as told:
        pass
    assert told() is None


SOURCE = """
#include <string>
extern "C" {
#ifdef REPORTS
static bool on = false;
static std::string launched;
void kernels_record_launches(int wanted) { on = wanted; if (on) launched.clear(); }
const char* kernels_recorded_launches() {
  static std::string list;
  list = "[" + launched + "]";
  return list.c_str();
}
void launch() { if (on) launched += (launched.empty() ? "" : ",") + std::string(R"(LAUNCH)"); }
#endif
void unrelated() {}
}
"""


def built(folder: Path, *flags: str) -> Path:
    (folder / "planted.cpp").write_text(SOURCE.replace("LAUNCH", json.dumps(LAUNCH)))
    subprocess.run(["c++", "-shared", "-fPIC", *flags, "planted.cpp", "-o", "a.so"], cwd=folder, check=True)
    return folder / "a.so"


def test_a_library_reports_what_was_launched_within(tmp_path: Path) -> None:
    path = built(tmp_path, "-DREPORTS")
    launch = ctypes.CDLL(str(path)).launch
    launch()
    with recorded(instance("cuda", path)) as told:
        launch()
        launch()
    launch()
    assert told() == (Launch.from_dict(LAUNCH),) * 2
    with pytest.raises(RuntimeError, match="planted"), recorded(instance("cuda", path)):
        raise RuntimeError("planted")
    launch()
    with recorded(instance("cuda", path)) as told:
        pass
    assert told() is None, "nothing was recorded in between"


def test_a_library_that_does_not_report_tells_nothing(tmp_path: Path) -> None:
    with recorded(instance("cuda", built(tmp_path))) as told:
        pass
    assert told() is None


class JITFunction:
    """Stands in for Triton's: a launch compiles, and asks the grid for its blocks as Triton does."""

    arg_names = ("out", "x", "BLOCK")
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


def test_triton_tells_the_arguments_by_name(triton_function: JITFunction) -> None:
    found: list[dict[str, Any]] = []
    with triton_launches(lambda compiled, grid, arguments: found.append(arguments)):
        triton_function.run(1, 2, grid=(3,), warmup=False, BLOCK=64, num_warps=8)
    assert found == [{"out": 1, "x": 2, "BLOCK": 64, "num_warps": 8}]


def test_a_triton_call_that_fails_leaves_triton_as_it_was(triton_function: JITFunction) -> None:
    with pytest.raises(RuntimeError, match="planted"), recorded(instance("triton")):
        raise RuntimeError("planted")
