"""The device that a command measures: its name in files, and its properties."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import pynvml

from ..contract import Gpu
from ..errors import UserError
from ..records.base import Record
from . import attributes


class Device(Record):
    """A device to measure on. ``index`` and ``uuid`` identify a GPU of this host. Results never contain the
    UUID."""

    kind: Literal["cpu", "cuda"]
    name: str
    index: int | None = None
    uuid: str | None = None

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def slug(self) -> str:
        """The device's name in file names, such as ``nvidia-h200`` or ``cpu-amd-epyc``."""
        prefix = "cpu-" if self.kind == "cpu" else ""
        plain = re.sub(r"\((r|tm|c)\)|@.*|\bcpu\b|\bprocessor\b", " ", self.name.lower())
        return prefix + re.sub(r"[^a-z0-9]+", "-", plain).strip("-")


class DriverFacts(Record):
    """A GPU's properties from NVIDIA's driver; ``memory`` is in bytes."""

    device: Device
    capability: tuple[int, int]
    driver: str
    memory: int


@cache
def driver_facts() -> tuple[DriverFacts, ...]:
    """Return the driver's facts for every GPU of this host; none without a driver.

    The result is cached, because starting NVML takes longer than the queries. Raises pynvml.NVMLError if NVML
    can't query a GPU.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            DriverFacts(
                device=Device(
                    kind="cuda",
                    name=pynvml.nvmlDeviceGetName(handle),
                    index=index,
                    uuid=pynvml.nvmlDeviceGetUUID(handle),
                ),
                capability=pynvml.nvmlDeviceGetCudaComputeCapability(handle),
                driver=driver,
                memory=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
            )
            for index, handle in enumerate(handles)
        )
    finally:
        pynvml.nvmlShutdown()


def driver_facts_of(device: Device) -> DriverFacts:
    """Return the driver's facts for one GPU of this host."""
    return next(one for one in driver_facts() if one.device.uuid == device.uuid)


def gpus() -> list[Device]:
    """Return the GPUs that a CUDA program in this environment sees, in its order; none without a driver."""
    found = [one.device for one in driver_facts()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        match = [found[int(word)]] if word.isdigit() and int(word) < len(found) else []
        match = match or [gpu for gpu in found if gpu.uuid and gpu.uuid.startswith(word)]
        if not match:
            break  # like CUDA, ignore an unknown device and all devices after it
        chosen += match
    return [gpu.replace(index=i) for i, gpu in enumerate(chosen)]


def cpu() -> Device:
    """Return the host's CPU as a device."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return Device(kind="cpu", name=model[1] if model else platform.machine())


def resolve(wanted: str) -> Device:
    """Return the device for ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.

    Raises UserError for any other word and for a GPU that does not exist.
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
    """Return the devices for a list of names, each once. ``all`` means every GPU, or the CPU if there is
    none.

    Raises UserError as ``resolve`` does, and for devices of different models, because a ledger belongs to one
    model.
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
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def capabilities(device: Device) -> Gpu | None:
    """Return the GPU's properties for ``fits``; None for a CPU. Raises UserError if the driver fails."""
    if device.kind == "cpu":
        return None
    done = subprocess.run(
        # -I -S skips the search for packages, which would take longer than the query.
        [sys.executable, "-I", "-S", attributes.__file__, str(device.uuid)],
        env={name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"the CUDA driver does not report the attributes of {device.name}: {done.stderr.strip()[-200:]}."
        )
    facts = json.loads(done.stdout)
    return Gpu(
        (facts["major"], facts["minor"]), facts["multiprocessors"], facts["shared_memory"], facts["l2_cache"]
    )
