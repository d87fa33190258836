import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.torch_install import Torch, installed_torch

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
UUIDS = ("GPU-aaaa1111", "GPU-aaab2222", "GPU-cccc3333")


@dataclass
class Handle:
    index: int


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Clear the driver's cached answers before and after each test."""
    device.driver_facts.cache_clear()
    yield
    device.driver_facts.cache_clear()


@pytest.fixture
def plant_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces NVIDIA's driver, which a machine without a GPU lacks."""

    def plant(*names: str) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(names))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", Handle)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: Handle(UUIDS.index(uuid)))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: names[handle.index])
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: UUIDS[handle.index])
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda handle: (9, 0))
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.82.07")
        memory = type("Memory", (), {"total": 80 << 30})
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: memory)

    return plant


@pytest.mark.parametrize(
    ("kind", "name", "slug"),
    [
        ("cuda", H100, "nvidia-h100-80gb-hbm3"),
        ("cuda", H200, "nvidia-h200"),
        ("cuda", "NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("cuda", "NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("cpu", "AMD EPYC", "cpu-amd-epyc"),
        ("cpu", "AMD EPYC 7742 64-Core Processor", "cpu-amd-epyc-7742-64-core"),
        ("cpu", "Intel(R) Xeon(R) Platinum 8480C", "cpu-intel-xeon-platinum-8480c"),
        ("cpu", "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "cpu-intel-core-i7-8700k"),
        ("cpu", "aarch64", "cpu-aarch64"),
        ("cpu", "../evil / name", "cpu-evil-name"),
    ],
)
def test_a_slug_is_the_models_name_for_files(kind: str, name: str, slug: str) -> None:
    assert Device.from_dict({"kind": kind, "name": name}).slug == slug


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,7,1", [0]),
        ("GPU-cccc3333", [2]),
        ("GPU-cc,0", [2, 0]),
        ("nothing", []),
    ],
)
def test_only_gpus_that_cuda_would_see_are_there_and_counted_as_it_counts(
    plant_gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: list[int]
) -> None:
    plant_gpus(H100, H100, H200)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = device.gpus()
    assert [gpu.uuid for gpu in found] == [UUIDS[i] for i in seen]
    assert [str(gpu) for gpu in found] == [f"cuda:{i}" for i in range(len(seen))]


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert device.gpus() == []
    assert device.resolve("auto").kind == "cpu"
    assert [chosen.kind for chosen in device.resolve_all(["all"])] == ["cpu"]
    with pytest.raises(UserError, match=r"^device=cuda is not there: no NVIDIA GPU or driver was found\."):
        device.resolve("cuda")


def test_torch_is_what_its_import_would_say() -> None:
    assert installed_torch() == Torch(Path(torch.__file__).parent, torch.__version__, torch.version.cuda)


def test_a_name_means_a_device(plant_gpus: Callable[..., None]) -> None:
    plant_gpus(H100, H100)
    assert [str(device.resolve(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]
    with pytest.raises(UserError, match=r"^device=cuda:2 is not there: this machine has 2\."):
        device.resolve("cuda:2")


@pytest.mark.parametrize("name", ["gpu7", "cuda1", "cuda:", "cuda:-1", "CPU", "", "cpu:0", "cuda:0,1"])
def test_any_other_word_is_no_device(plant_gpus: Callable[..., None], name: str) -> None:
    plant_gpus(H100)
    with pytest.raises(UserError, match="is not a device; write auto, cpu, cuda or cuda:N"):
        device.resolve(name)


def test_several_devices_are_of_one_model_and_each_once(plant_gpus: Callable[..., None]) -> None:
    plant_gpus(H100, H100, H200)
    chosen = device.resolve_all(["cuda:1", "cuda:0", "cuda:1", "auto"])
    assert [str(one) for one in chosen] == ["cuda:1", "cuda:0"]
    for mixed in (["all"], ["cuda:0", "cuda:2"], ["cuda:0", "cpu"]):
        with pytest.raises(UserError, match="a sweep needs devices of one model"):
            device.resolve_all(mixed)


@pytest.fixture(autouse=True)
def own_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LOCAL", tmp_path / "local")


def test_a_gpus_fingerprint_has_no_host(plant_gpus: Callable[..., None]) -> None:
    plant_gpus(H100)
    assert fingerprint(device.resolve("cuda")).host is None


def test_what_a_gpu_can_do_is_asked_of_the_driver_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        '{"major": 9, "minor": 0, "multiprocessors": 132, "shared_memory": 232448, "l2_cache": 62914560}'
    ]
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str], env: dict[str, str], **rest: Any) -> subprocess.CompletedProcess[str]:
        assert "CUDA_VISIBLE_DEVICES" not in env, "which would hide the GPU or renumber it"
        asked.append(words)
        return subprocess.CompletedProcess(
            words, 0 if answers else 1, answers.pop() if answers else "", "why"
        )

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(device.subprocess, "run", run)
    gpu = Device(kind="cuda", name=H200, index=0, uuid="GPU-planted")
    for _ in range(2):
        assert device.capabilities(gpu) == Gpu((9, 0), 132, 232448, 62914560)
    assert [words[-1] for words in asked] == ["GPU-planted"]
    assert device.capabilities(device.cpu()) is None
    with pytest.raises(
        UserError, match=r"^the CUDA driver does not report the attributes of NVIDIA H100 .*: why\.$"
    ):
        device.capabilities(Device(kind="cuda", name=H100, index=0, uuid="GPU-other"))


def test_a_fingerprint_is_the_same_each_time_and_names_no_machine(plant_gpus: Callable[..., None]) -> None:
    plant_gpus(H100, H100)
    for name in ("cuda:0", "cpu"):
        first, second = (fingerprint(device.resolve(name)) for _ in range(2))
        assert first == second
        assert first.digest == second.digest
        text = json.dumps(first.to_dict())
        assert not any(uuid in text for uuid in UUIDS)
        assert socket.gethostname() not in text
        told = text.replace(first.cxx or "", "").replace(first.host or "", "")
        assert "202" not in told, "no date"
    one, other = (fingerprint(device.resolve(name)) for name in ("cuda:0", "cuda:1"))
    assert one == other, "two GPUs of a model are one environment"
    assert (one.compute_capability, one.driver, one.memory_mib) == ("9.0", "580.82.07", 80 << 10)
