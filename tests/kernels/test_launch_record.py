"""What a CUDA library says of its launches: the record alone, in a library that needs no CUDA."""

import ctypes
import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from kernel_pipeline import loading
from kernel_pipeline.machine.fingerprint import find_cxx

SOURCE = r"""
#include "launch_record.h"

extern "C" __attribute__((visibility("default"))) void launch(unsigned blocks) {
  kernels::record_launch(
      {"register_resident_rows", "register_resident", {blocks, 1, 1}, {256, 1, 1}, {4, 1, 1}, 96, 0});
}
extern "C" __attribute__((visibility("default"))) void launch_oddly() {
  kernels::record_launch({"a \"b\" \\ \n", "", {4294967295u, 2, 3}, {16, 16, 1}, {1, 1, 1}, 1LL << 40, 6});
}
"""


class Library:
    """A library as the pipeline reads it."""

    def __init__(self, path: Path) -> None:
        self.functions = ctypes.CDLL(str(path))
        self.functions.kernels_recorded_launches.restype = ctypes.c_char_p

    def record(self, on: bool) -> None:
        self.functions.kernels_record_launches(int(on))

    def launch(self, blocks: int) -> None:
        self.functions.launch(ctypes.c_uint(blocks))

    def launches(self) -> Any:
        return json.loads(self.functions.kernels_recorded_launches())

    def grids(self) -> list[int]:
        return [launch["grid"][0] for launch in self.launches()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled of two sources, as one is that needs the record in both."""
    folder = tmp_path_factory.mktemp("record")
    (folder / "launch.cpp").write_text(SOURCE)
    (folder / "other.cpp").write_text('#include "launch_record.h"\n')
    flags = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-shared", f"-I{loading.ROOT / 'include'}"]
    command = [str(find_cxx().path), *flags, "launch.cpp", "other.cpp", "-o", "library.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "library.so"


@pytest.fixture
def library(built: Path, tmp_path: Path) -> Library:
    """A library of which no test has recorded anything: of another path, it is another library."""
    return Library(Path(shutil.copy(built, tmp_path)))


def test_launches_are_listed_in_their_order(library: Library) -> None:
    library.record(True)
    library.launch(512)
    library.functions.launch_oddly()
    assert library.launches() == [
        {
            "function": "register_resident_rows",
            "strategy": "register_resident",
            "grid": [512, 1, 1],
            "block": [256, 1, 1],
            "cluster": [4, 1, 1],
            "shared_bytes": 96,
            "stages": 0,
        },
        {
            "function": 'a "b" \\ \n',
            "strategy": "",
            "grid": [4294967295, 2, 3],
            "block": [16, 16, 1],
            "cluster": [1, 1, 1],
            "shared_bytes": 2**40,
            "stages": 6,
        },
    ]


def test_a_record_has_the_launches_since_it_began(library: Library) -> None:
    library.launch(1)
    assert library.launches() == []
    library.record(True)
    library.launch(2)
    library.record(False)
    library.launch(3)
    assert library.grids() == [2]
    for launches in ([4], []):
        library.record(True)
        for blocks in launches:
            library.launch(blocks)
        assert library.grids() == launches


def test_threads_have_their_own_records(library: Library) -> None:
    others: list[list[int]] = []

    def other() -> None:
        library.launch(1)
        others.append(library.grids())
        library.record(True)
        library.launch(2)
        others.append(library.grids())

    library.record(True)
    library.launch(3)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    library.launch(4)
    assert others == [[], [2]]
    assert library.grids() == [3, 4]


def test_libraries_have_their_own_records(library: Library, built: Path) -> None:
    library.record(True)
    another = Library(built)
    another.launch(1)
    assert library.launches() == another.launches() == []
