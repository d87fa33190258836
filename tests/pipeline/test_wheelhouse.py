from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import ROOT
from pipeline.wheelhouse import VERSIONS, pins

LOCK = [
    "old==1.0 ; python_full_version < '3.12' and sys_platform == 'linux'",
    "old==2.0 ; python_full_version >= '3.12' and sys_platform == 'linux'",
    "elsewhere==1.0 ; sys_platform == 'win32'",
    "torch==2.13.0 ; sys_platform == 'linux'",
    "triton==3.7.1 ; sys_platform == 'linux'",
    "nvidia-cublas==13.1 ; sys_platform == 'linux'",
    "nvidia-cuda-nvcc==13.0.88 ; platform_machine == 'x86_64'",
    "nvidia-ml-py==13.0 ; sys_platform == 'linux'",
]


def test_the_pins_are_those_of_the_hosts_python() -> None:
    assert pins(LOCK, "3.11")[0] == "old==1.0"
    assert pins(LOCK, "3.12")[0] == "old==2.0"
    assert not any(pin.startswith("elsewhere") for pin in pins(LOCK, "3.12"))


def test_without_torch_the_compiler_stays() -> None:
    assert pins(LOCK, "3.12", with_torch=False) == [
        "old==2.0",
        "nvidia-cuda-nvcc==13.0.88",
        "nvidia-ml-py==13.0",
    ]


@pytest.mark.parametrize("python", VERSIONS)
def test_no_package_of_the_lock_is_wanted_twice(python: str) -> None:
    found = pins(Path(ROOT / "constraints.txt").read_text().splitlines(), python)
    names = [pin.partition("==")[0] for pin in found]
    assert len(names) == len(set(names)) > 150
    assert {"torch", "setuptools", "nvidia-cuda-nvcc"} <= set(names)
