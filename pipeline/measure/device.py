"""The machine: which device a command measures, its name in files, and its fingerprint.

Nothing here imports torch: the environment stage runs on every ``dvc repro`` and must be quick, and a
process that only plans must hold no CUDA context.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

import pynvml

from pipeline.errors import UserError
from pipeline.measure.record import Record, digest
from pipeline.measure.toolchain import Cxx, Nvcc, find_cxx, find_nvcc


class Device(Record):
    """A device to measure on. ``index`` and ``uuid`` name one GPU of this host; the UUID is kept out of
    every result."""

    kind: Literal["cpu", "cuda"]
    name: str
    index: int | None = None
    uuid: str | None = None

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def slug(self) -> str:
        """The device's name in file names: ``nvidia-h200``, ``cpu-amd-epyc``."""
        prefix = "cpu-" if self.kind == "cpu" else ""
        plain = re.sub(r"\((r|tm|c)\)|@.*|\bcpu\b|\bprocessor\b", " ", self.name.lower())
        return prefix + re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


class Environment(Record):
    """What a result depends on and the commit does not hold. No time, host name or UUID, so that the
    same machine gives the same fingerprint on every run.

    ``image`` and ``base_image`` name a container's image and what that was built from, each with its digest.
    They are told and not part of the identity: an image that was built again is another one, and what a
    result depends on in it, the other fields say."""

    gpu: str
    name: str
    kind: Literal["cpu", "cuda"]
    compute_capability: str | None
    memory_mib: int
    driver: str | None
    cuda: str | None
    torch: str
    triton: str
    python: str
    nvcc: str | None
    cxx: str | None
    cpu: str
    cpu_threads: int
    platform: str
    image: str | None = None
    base_image: str | None = None

    @property
    def digest(self) -> str:
        """What a ledger row names as its environment."""
        return digest(self.model_dump(exclude=TOLD))


TOLD = {"image", "base_image"}
"""The fields of an environment that a result does not depend on."""


def gpus() -> list[Device]:
    """The GPUs that CUDA programs started from here would see, in their order; none without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [
            Device(kind="cuda", name=pynvml.nvmlDeviceGetName(h), index=i, uuid=pynvml.nvmlDeviceGetUUID(h))
            for i, h in enumerate(handles)
        ]
    finally:
        pynvml.nvmlShutdown()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        match = [found[int(word)]] if word.isdigit() and int(word) < len(found) else []
        match = match or [gpu for gpu in found if gpu.uuid and gpu.uuid.startswith(word)]
        if not match:
            break  # CUDA too ignores an unknown device and all behind it
        chosen += match
    return [gpu.model_copy(update={"index": i}) for i, gpu in enumerate(chosen)]


def cpu() -> Device:
    """The host's processor as a device."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return Device(kind="cpu", name=model[1] if model else platform.machine())


def resolve(wanted: str) -> Device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` means here.

    Raises UserError for any other word and for a GPU that is not there.
    """
    if wanted == "cpu":
        return cpu()
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", wanted)
    if not match:
        raise UserError(f"device={wanted} is not a device; write auto, cpu, cuda or cuda:N.")
    found = gpus()
    if wanted == "auto" and not found:
        return cpu()
    index = int(match[1] or 0)
    if index >= len(found):
        there = f"this machine has {len(found)}" if found else "no NVIDIA GPU or driver was found"
        raise UserError(f"device={wanted} is not there: {there}. Write device=auto or device=cpu.")
    return found[index]


def resolve_all(wanted: Sequence[str]) -> list[Device]:
    """The devices that a list of names means, each once; ``all`` is every GPU, or the CPU if there is none.

    Raises UserError as ``resolve`` does, and for devices of different models: a ledger belongs to one.
    """
    if list(wanted) == ["all"]:
        chosen = gpus() or [cpu()]
    else:
        chosen = list(dict.fromkeys(resolve(name) for name in wanted))
    if len({device.slug for device in chosen}) > 1:
        models = ", ".join(f"{device} is {device.slug}" for device in chosen)
        raise UserError(f"a sweep needs devices of one model ({models}); sweep each model on its own.")
    return chosen


def cpu_threads() -> int:
    """Threads that this process may run at once."""
    return len(os.sched_getaffinity(0))


def fingerprint(device: Device) -> Environment:
    """Read what the device's results depend on."""
    capability, driver = None, None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.kind == "cuda":
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            capability = "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            driver = pynvml.nvmlSystemGetDriverVersion()
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total
        finally:
            pynvml.nvmlShutdown()
    return Environment(
        gpu=device.slug,
        name=device.name,
        kind=device.kind,
        compute_capability=capability,
        # Whole GiB on a CPU: the kernel's own share of the memory changes from boot to boot.
        memory_mib=memory >> 20 if device.kind == "cuda" else (memory >> 30) << 10,
        driver=driver,
        cuda=installed_torch().cuda,
        torch=metadata.version("torch"),
        triton=metadata.version("triton"),
        python=".".join(platform.python_version_tuple()[:2]),
        nvcc=_version(find_nvcc),
        cxx=_version(find_cxx),
        cpu=cpu().name,
        cpu_threads=cpu_threads(),
        platform=f"{platform.system()}-{platform.machine()}",
        # docker/run says so: an image can't hold its own digest.
        image=os.environ.get("PIPELINE_IMAGE"),
        base_image=os.environ.get("PIPELINE_BASE_IMAGE"),
    )


@dataclass(frozen=True)
class Torch:
    """The torch that is installed: its package's folder, its version, the CUDA version it was built for."""

    folder: Path
    version: str
    cuda: str | None


def installed_torch() -> Torch:
    """What ``torch`` would say of itself, without the seconds that its import takes."""
    spec = util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is a dependency of this package"
    folder = Path(spec.origin).parent
    told = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, told["__version__"], told["cuda"])


def _version(find: Callable[[], Nvcc | Cxx]) -> str | None:
    """The version of the compiler that a build here would use, or None where there is none."""
    try:
        return find().version
    except UserError:
        return None
