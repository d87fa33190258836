"""The compile pool with a real Triton: it compiles for a GPU on a machine that has none."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
import pytest

from kernel_pipeline import loading, problems
from kernel_pipeline.execution import compile_pool
from kernel_pipeline.execution.compile_pool import Ahead, CompilePool, Compilers
from kernel_pipeline.execution.compile_server import alike
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point

BLOCK_SIZES = (256, 512)
SIZES = (65536, 131072)
"""Too many columns for a kernel of their own."""


def point(provider: str, columns: int, **parameters: int) -> Point:
    problem = problems.make(loading.load("softmax").kernel.problem, {"columns": columns})
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
    """Return the compile servers of this process, without their reapers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[1:3] == ["-m", "kernel_pipeline.execution.compile_server"]:
                found.append(process)
    return found


class Pools(list[tuple[str, Point]]):
    """What pools were asked for, with the number of pools that were started and of those that were ended."""

    started = ended = 0

    def pool(self, capability: str) -> Self:
        self.started += 1
        return self

    def submit(self, where: str, points: list[Point]) -> dict[Point, Future[None]]:
        self += [(where, one) for one in points]
        return {one: Future() for one in points}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.ended += 1


def test_kernels_share_a_pool_that_starts_with_the_first_point(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = Pools()
    monkeypatch.setattr(compile_pool, "CompilePool", pools.pool)
    torch = POINTS[0].replace(provider="torch", parameters=Values({}))
    with Compilers("9.0") as compilers:
        softmax, square = (Ahead(loading.load(name), compilers) for name in ("softmax", "square"))
        softmax.submit([torch])
        assert not pools.started and not softmax.futures, "torch is not compiled ahead"
        softmax.submit([torch, POINTS[0]])
        of_square = POINTS[0].replace(kernel="square", provider="triton_flat")
        square.submit([of_square])
        softmax.submit(POINTS[:2])
        assert pools == [("softmax", POINTS[0]), ("square", of_square), ("softmax", POINTS[1])]
        assert (pools.started, pools.ended) == (1, 0)
        assert list(softmax.futures) == POINTS[:2], "each is submitted once"
    assert pools.ended == 1


def test_nothing_is_compiled_ahead_without_a_gpu_to_compile_for() -> None:
    ahead = Ahead(loading.load("softmax"), Compilers(None))
    ahead.submit(POINTS)
    assert not ahead.futures


def test_what_points_launch_is_compiled_when_their_futures_are_done(cache: Path) -> None:
    """There are several submissions, with a point that its provider refuses and one that can't be called."""
    refused = point("triton_row", 131072, num_warps=4)
    unknown = POINTS[0].replace(parameters=Values({"no_such": 1}))
    with CompilePool("9.0") as pool:
        for some in ([refused, *POINTS[::2]], POINTS[1::2], [unknown, POINTS[0]]):
            futures = pool.submit("softmax", some)
            assert list(futures) == some
            done, _ = wait(futures.values(), timeout=300)
            assert len(done) == len(some) and not any(future.cancelled() for future in done)
    binaries = list(cache.rglob("*.cubin"))
    assert len(binaries) == len(BLOCK_SIZES), "sizes share the kernel of their block size"
    assert "sm_90" in next(cache.rglob("*.ptx")).read_text()
    assert servers() == []


def test_a_pool_that_dies_leaves_the_points_to_their_launch() -> None:
    with CompilePool("9.0") as pool:
        futures = pool.submit("softmax", POINTS)
        while not servers():
            time.sleep(0.01)
        (server,) = servers()
        server.send_signal(signal.SIGKILL)
        done, _ = wait(futures.values(), timeout=120)
        assert len(done) == len(POINTS)
        later, _ = wait(pool.submit("softmax", POINTS[:1]).values(), timeout=120)
        assert len(later) == 1, "also those that are submitted to a dead one"


ASKED = [one.to_dict() for one in POINTS]

HOLD = f"""
import time
from kernel_pipeline.records.point import Point
from kernel_pipeline.execution.compile_pool import CompilePool
pool = CompilePool("9.0")
pool.submit("softmax", [Point.from_dict(one) for one in {ASKED}])
print("ready", flush=True)
time.sleep(600)
"""

PTXAS = """#!/bin/sh
echo $$ >> "$0.started"
exec sleep 600
"""


def marked(mark: Path) -> list[psutil.Process]:
    """The processes that have a path in their environment, whoever started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(mark) in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["started", "assembling"])
def test_no_compiler_outlives_the_process_that_holds_the_pool(
    moment: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the server starts, and while an assembler runs that takes ten minutes."""
    started = tmp_path / "ptxas.started"
    if moment == "assembling":
        (tmp_path / "ptxas").write_text(PTXAS)
        (tmp_path / "ptxas").chmod(0o755)
        monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "ptxas"))
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    while moment == "assembling" and not started.exists():
        time.sleep(0.01)
    processes = marked(cache)
    assert len(processes) >= {"started": 2, "assembling": 4}[moment]
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    psutil.wait_procs(processes, timeout=120)
    assert marked(cache) == []


def test_compilers_that_are_killed_leave_the_points_to_their_launch() -> None:
    with CompilePool("9.0") as pool:
        futures = pool.submit("softmax", [*POINTS, *(point("triton_row", n, num_warps=4) for n in (64, 128))])
        deadline = time.monotonic() + 300
        while not (forks := [one for server in servers() for one in server.children()]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for one in forks:
            one.kill()
        done, _ = wait(futures.values(), timeout=300)
        assert len(done) == len(futures)


def test_points_that_differ_in_the_numbers_of_their_problems_alone_share_a_compiler() -> None:
    half = [one.replace(problem=Values({**one.problem, "dtype": "float16"})) for one in POINTS]
    groups = alike([*POINTS, *half])
    assert sorted(map(len, groups)) == [2, 2, 2, 2]
    for group in groups:
        assert len({one.parameters for one in group}) == 1
        assert len({one.problem["dtype"] for one in group}) == 1
