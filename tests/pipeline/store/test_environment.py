"""What a provider feels of an environment."""

import pytest

from kernel_pipeline.contract import Provider
from kernel_pipeline.machine.fingerprint import flags
from kernel_pipeline.records import environment as store
from tests import factory

H200, CPU = factory.environment(factory.H200), factory.environment(factory.CPU)
PROVIDERS = {
    "torch": Provider("torch", "torch.py:f"),
    "compiled": Provider("compiled", "torch.py:f", compiled=True),
    "triton": Provider("triton", "triton.py:f"),
    "gluon": Provider("gluon", "gluon.py:f"),
    "cuda": Provider("cuda", "cuda.cu:f"),
    "naive": Provider("naive", "cuda.py:f", extension="cuda.cu"),
    "cpp": Provider("cpp", "cpp.cpp:f"),
    "numba": Provider("numba", "numba.py:f"),
}
OF_ALL = {"gpu", "compute_capability", "driver", "cuda", "torch", "flags"}
OF_HOST = {"python", "cpu", "cpu_threads", "platform", "host"}
OWN = {
    "torch": set(),
    "compiled": {"triton"},
    "triton": {"triton"},
    "gluon": {"triton"},
    "cuda": {"nvcc"},
    "naive": {"nvcc"},
    "cpp": {"cxx"},
    "numba": {"numba"},
}


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_feels_its_languages_tools_and_on_a_cpu_the_host(name: str) -> None:
    assert set(H200.keyed_for(PROVIDERS[name])) == OF_ALL | OWN[name]
    compiles = {"cxx"} if name == "compiled" else set()
    assert set(CPU.keyed_for(PROVIDERS[name])) == OF_ALL | OF_HOST | OWN[name] | compiles


def test_a_peer_that_is_not_installed_has_no_version() -> None:
    relevant_environment = H200.keyed_for(
        Provider("peer", "peers.py:f", language="torch", package="no-such-package")
    )
    assert set(relevant_environment) == OF_ALL | {"triton"}
    relevant_environment = H200.keyed_for(
        Provider("peer", "peers.py:f", language="torch", package="pydantic")
    )
    assert relevant_environment["package"].startswith("pydantic 2")


def test_numba_feels_what_compiles_it_and_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "NUMBA", ("pydantic", "no-such-package"))
    monkeypatch.setenv("NUMBA_OPT", "1")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    told = H200.replace(flags=flags("cuda"))
    relevant_environment = told.keyed_for(PROVIDERS["numba"])
    assert list(relevant_environment["numba"]) == ["pydantic"]
    assert relevant_environment["flags"].get("NUMBA_OPT") == "1"
    assert "NUMBA_ENABLE_CUDASIM" not in relevant_environment["flags"]
    assert "NUMBA_OPT" not in told.keyed_for(PROVIDERS["triton"])["flags"]


def test_what_only_tells_is_no_part_of_the_digest_or_of_the_devices_limits() -> None:
    told = H200.replace(image="i", base_image="b")
    assert told.digest == H200.digest
    elsewhere = H200.replace(cpu="Xeon", cpu_threads=1, triton="4", nvcc=None)
    assert elsewhere.digest != H200.digest
    assert elsewhere.of_device == H200.of_device
    for change in ({"driver": "1"}, {"torch": "1"}, {"flags": {"CUBLAS_WORKSPACE_CONFIG": ":8"}}):
        assert H200.replace(**change).of_device != H200.of_device
