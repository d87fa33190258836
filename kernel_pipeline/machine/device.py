"""Which device a command measures, its name in files, and what it can do."""

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


class DriverFacts(Record):
    """What NVIDIA's driver tells of a GPU; ``memory`` is in bytes."""

    device: Device
    capability: tuple[int, int]
    driver: str
    memory: int


@cache
def driver_facts() -> tuple[DriverFacts, ...]:
    """What NVIDIA's driver tells of every GPU of this host; nothing without a driver.

    It is asked once a process: its start takes longer than all that it is asked. Raises pynvml.NVMLError for
    a GPU that it can't tell of.
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
    """What NVIDIA's driver tells of one GPU of this host."""
    return next(one for one in driver_facts() if one.device.uuid == device.uuid)


def gpus() -> list[Device]:
    """The GPUs that CUDA programs started from here would see, in their order; none without a driver."""
    found = [one.device for one in driver_facts()]
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
    return [gpu.replace(index=i) for i, gpu in enumerate(chosen)]


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


@cache
def capabilities(device: Device) -> Gpu | None:
    """What a provider may ask of a GPU; None for a CPU. Raises UserError where the driver does not tell."""
    if device.kind == "cpu":
        return None
    done = subprocess.run(
        # Without packages, which it has no use for: to look for them would take longer than to ask.
        [sys.executable, "-I", "-S", attributes.__file__, str(device.uuid)],
        env={name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            f"the CUDA driver does not tell what {device.name} can do: {done.stderr.strip()[-200:]}."
        )
    facts = json.loads(done.stdout)
    return Gpu(
        (facts["major"], facts["minor"]), facts["multiprocessors"], facts["shared_memory"], facts["l2_cache"]
    )
