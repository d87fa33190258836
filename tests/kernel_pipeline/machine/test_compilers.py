import importlib.util
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import fingerprint as toolchain
from tests.kernel_pipeline.toolchain.tiny import needs_nvcc

NOWHERE = Path("/nonexistent")


def fake_nvcc(home: Path, version: str) -> Path:
    """Write a toolkit into a folder, whose nvcc only prints its version. Return the nvcc."""
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release x, V{version}'\n")
    nvcc.chmod(0o755)
    (home / "lib64").mkdir()
    (home / "lib64" / "libcudart_static.a").touch()
    return nvcc


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_packages")
def test_the_order_of_system_compilers(tmp_path: Path) -> None:
    paths = {name: fake_nvcc(tmp_path / name, "13.1.2") for name in ("home", "path", "on_path", "usual")}
    environment = {
        "CUDA_HOME": str(tmp_path / "home"),
        "CUDA_PATH": str(tmp_path / "path"),
        "PATH": str(tmp_path / "on_path" / "bin"),
    }
    for name, variable in (("home", "CUDA_HOME"), ("path", "CUDA_PATH"), ("on_path", "PATH"), ("usual", "")):
        found = toolchain.find_nvcc(environment, tmp_path / "usual")
        assert found == toolchain.Nvcc(paths[name], "13.1.2", tmp_path / name / "lib64")
        environment.pop(variable, None)


@pytest.mark.usefixtures("no_packages")
def test_an_old_system_compiler_is_passed_over(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "old", "11.8.89")
    fake_nvcc(tmp_path / "new", "12.4.131")
    found = toolchain.find_nvcc({"CUDA_HOME": str(tmp_path / "old")}, tmp_path / "new")
    assert found.version == "12.4.131"


@pytest.mark.usefixtures("no_packages")
def test_no_cuda_compiler_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r'pip install "cuda-toolkit\[nvcc,cudart,crt,cccl\]==13'):
        toolchain.find_nvcc({}, NOWHERE)


def test_no_cxx_compiler_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no C\+\+ compiler was found: install g\+\+"):
        toolchain.find_cxx({"PATH": str(tmp_path)})
    with pytest.raises(UserError, match="CXX names nosuch, which does not exist"):
        toolchain.find_cxx({"PATH": str(tmp_path), "CXX": "nosuch"})


@needs_nvcc
def test_the_real_compiler_knows_architectures() -> None:
    assert {"80", "90"} <= toolchain.find_nvcc().architectures()


def test_demangle() -> None:
    names = toolchain.demangle(["_Z1fPf", "_Z1gIiEvT_"])
    if names["_Z1fPf"] == "_Z1fPf":
        pytest.skip("no demangler here, so names stay as they are")
    assert names == {"_Z1fPf": "f(float*)", "_Z1gIiEvT_": "void g<int>(int)"}
    assert toolchain.demangle([]) == {}
