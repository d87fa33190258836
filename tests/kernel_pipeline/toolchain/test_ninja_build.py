"""Compilers end when the process that started them ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]

BUILD = """
import signal, sys
from pathlib import Path
from kernel_pipeline.toolchain.ninja_build import LibraryBuild, compile_all
folder = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
source, compiler = folder / "source.cpp", str(folder / "compiler")
compile_all([LibraryBuild(source, folder / "made.so", (compiler,), ("true",))], folder, folder)
"""

COMPILER = """#!/bin/sh
sleep 600 &
touch "$0.started"
wait
"""
"""Like nvcc, it starts a child process and waits for it."""


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_no_compiler_outlives_the_process_that_builds(tmp_path: Path, stop: signal.Signals) -> None:
    (tmp_path / "source.cpp").touch()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    building = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    started = Path(f"{compiler}.started")
    while building.poll() is None and not started.exists():
        time.sleep(0.01)
    below: list[psutil.Process] = []
    # A shell forks before it runs `sleep`.
    while building.poll() is None and [process.name() for process in below].count("sleep") != 1:
        below = psutil.Process(building.pid).children(recursive=True)
    assert building.poll() is None
    os.kill(building.pid, stop)
    building.wait()
    _, alive = psutil.wait_procs(below, timeout=60)
    for process in alive:
        process.kill()
    assert alive == []
