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

from kernels.point import Point
from pipeline.measure.compiler import CompilePool

BLOCK_SIZES = (256, 512)
SIZES = (65536, 131072)
"""Too many columns for a kernel of their own."""
POINTS = [
    Point("softmax", "triton_online", size, "float32", block_size=block_size, num_warps=4)
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
        futures = pool.submit(POINTS)
        assert list(futures) == POINTS
        done, _ = wait(futures.values(), timeout=300)
        assert len(done) == len(POINTS)
        assert not any(future.cancelled() for future in done)
    binaries = list(cache.rglob("*.cubin"))
    assert len(binaries) == len(BLOCK_SIZES), "sizes share the kernel of their block size"
    assert "sm_90" in next(cache.rglob("*.ptx")).read_text()
    assert servers() == []


def test_a_point_that_does_not_compile_holds_up_no_other() -> None:
    unknown = Point("softmax", "no_such_provider", 64, "float32", block_size=256, num_warps=4)
    with CompilePool("9.0") as pool:
        futures = pool.submit([unknown, POINTS[0]])
        done, _ = wait(futures.values(), timeout=300)
        assert len(done) == 2


def test_a_point_that_its_provider_refuses_is_not_compiled(cache: Path) -> None:
    crowded = Point("softmax", "triton_online", 64, "float32", block_size=8192, num_warps=1)
    with CompilePool("9.0") as pool:
        done, _ = wait(pool.submit([crowded]).values(), timeout=300)
        assert len(done) == 1
    assert not list(cache.rglob("*.cubin"))


def test_a_pool_that_dies_leaves_the_points_to_their_launch() -> None:
    with CompilePool("9.0") as pool:
        futures = pool.submit(POINTS)
        (server,) = servers()
        server.send_signal(signal.SIGKILL)
        done, _ = wait(futures.values(), timeout=60)
        assert len(done) == len(POINTS)


def test_no_compiler_outlives_the_process_that_holds_the_pool() -> None:
    code = (
        "import os, signal, time\n"
        "from kernels.point import Point\n"
        "from pipeline.measure.compiler import CompilePool\n"
        "pool = CompilePool('9.0')\n"
        f"futures = pool.submit({POINTS!r})\n"
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
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
