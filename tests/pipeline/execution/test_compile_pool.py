"""The compile pool with a real Triton: it compiles for a GPU on a machine that has none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import psutil
import pytest

import kernels
from pipeline.execution.compile_pool import CompilePool
from pipeline.execution.compile_server import alike
from pipeline.points import problems
from pipeline.points.frozen import Values
from pipeline.points.point import Point

BLOCK_SIZES = (256, 512)
SIZES = (65536, 131072)
"""Too many columns for a kernel of their own."""


def point(provider: str, columns: int, **parameters: int) -> Point:
    problem = problems.make(kernels.load("softmax").kernel.problem, {"columns": columns})
    return Point(
        kernel="softmax",
        provider=provider,
        problem=problems.values_of(problem),
        parameters=Values(parameters),
    )


POINTS = [
    point("triton_online", size, block_size=block_size, num_warps=4)
    for size in SIZES
    for block_size in BLOCK_SIZES
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return tmp_path / "triton"


def servers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if "compile_server" in " ".join(p.cmdline())]


def test_what_a_point_launches_is_compiled_when_its_future_is_done(cache: Path) -> None:
    with CompilePool("9.0") as pool:
        futures = pool.submit("softmax", POINTS)
        assert list(futures) == POINTS
        done, _ = wait(futures.values(), timeout=300)
        assert len(done) == len(POINTS)
        assert not any(future.cancelled() for future in done)
    binaries = list(cache.rglob("*.cubin"))
    assert len(binaries) == len(BLOCK_SIZES), "sizes share the kernel of their block size"
    assert "sm_90" in next(cache.rglob("*.ptx")).read_text()
    assert servers() == []


def test_a_point_that_does_not_compile_holds_up_no_other() -> None:
    unknown = POINTS[0].model_copy(update={"parameters": Values({"no_such": 1})})
    with CompilePool("9.0") as pool:
        futures = pool.submit("softmax", [unknown, POINTS[0]])
        done, _ = wait(futures.values(), timeout=300)
        assert len(done) == 2


def test_a_point_that_its_provider_refuses_is_not_compiled(cache: Path) -> None:
    refused = point("triton_row", 131072, num_warps=4)
    with CompilePool("9.0") as pool:
        done, _ = wait(pool.submit("softmax", [refused]).values(), timeout=300)
        assert len(done) == 1
    assert not list(cache.rglob("*.cubin"))


def test_a_pool_that_dies_leaves_the_points_to_their_launch() -> None:
    with CompilePool("9.0") as pool:
        futures = pool.submit("softmax", POINTS)
        (server,) = servers()
        server.send_signal(signal.SIGKILL)
        done, _ = wait(futures.values(), timeout=120)
        assert len(done) == len(POINTS)


def test_no_compiler_outlives_the_process_that_holds_the_pool() -> None:
    code = (
        "import os, signal, time\n"
        "from pipeline.points.point import Point\n"
        "from pipeline.execution.compile_pool import CompilePool\n"
        "pool = CompilePool('9.0')\n"
        f"points = [Point.model_validate(one) for one in {[one.model_dump() for one in POINTS]}]\n"
        "futures = pool.submit('softmax', points)\n"
        "next(iter(futures.values())).result()\n"
        "print('compiled', flush=True)\n"
        "time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "compiled\n"
    processes = psutil.Process(holder.pid).children(recursive=True)
    assert len(processes) >= 2, "the server and its forks"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert alive == []


def test_points_that_differ_in_the_numbers_of_their_problems_alone_share_a_compiler() -> None:
    half = [one.model_copy(update={"problem": Values({**one.problem, "dtype": "float16"})}) for one in POINTS]
    groups = alike([*POINTS, *half])
    assert sorted(map(len, groups)) == [2, 2, 2, 2]
    for group in groups:
        assert len({one.parameters for one in group}) == 1
        assert len({one.problem["dtype"] for one in group}) == 1
