"""Stage ``build``: compile kernels' C++ and CUDA sources, and report the resources of their CUDA functions.

    python -m pipeline.build kernel=gelu,softmax
    python -m pipeline.build kernel=softmax architectures=[80,90,100]
    python -m pipeline.build kernel=path/to/a/folder

CUDA sources are compiled for this machine's GPU. Without a GPU they are skipped unless ``architectures`` are
named: compiling takes minutes, and nothing could run. With lazily=true a kernel is skipped if its report
describes the current sources and compilers. Its libraries are then built when a point needs them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import find_cxx, find_nvcc
from kernel_pipeline.machine.torch_install import installed_torch
from kernel_pipeline.toolchain import extension, inductor, ninja_build, resources
from kernel_pipeline.toolchain.extension import Place, is_cuda
from kernel_pipeline.toolchain.resources import BuildReport

from .command.options import BuildConfig
from .command.run import console, for_each, run_each, say
from .reporting.tables import TextTable
from .store import results


def build_kernel(place: Place, sources: Sequence[str], architectures: Sequence[str] | None) -> BuildReport:
    """Build a kernel's sources and report on them.

    A machine without a GPU skips CUDA sources, with a remark, if it has no nvcc or no ``architectures`` are
    given. Raises UserError if another source can't be built.
    """
    remarks = []
    wanted = list(sources)
    if any(map(is_cuda, wanted)) and not device.gpus() and (why := without_cuda(architectures)):
        remarks += [f"{place.source(name)} was left out: {why}" for name in wanted if is_cuda(name)]
        wanted = [name for name in wanted if not is_cuda(name)]
    # DVC expects the folder, even if it is empty.
    place.output.mkdir(parents=True, exist_ok=True)
    libraries = extension.build(place, wanted, architectures)
    cuda = {name: library for name, library in libraries.items() if is_cuda(name)}
    nvcc = find_nvcc().version if cuda else None
    skipped = dict.fromkeys(name for library in cuda.values() for name in library.skipped)
    remarks += [f"sm_{name} was left out: nvcc {nvcc} does not know it." for name in skipped]
    return BuildReport(
        kernel=place.name,
        torch=installed_torch().version,
        nvcc=nvcc,
        cxx=find_cxx().version if wanted else None,
        architectures=tuple(dict.fromkeys(a for library in cuda.values() for a in library.architectures)),
        remarks=tuple(remarks),
        functions=tuple(row for name in cuda for row in resources.resources(place, name)),
        made_of={name: extension.made_of(place, name) for name in libraries},
    )


def without_cuda(architectures: Sequence[str] | None) -> str:
    """Return the reason why a machine without a GPU skips CUDA sources; empty if it builds them."""
    if architectures is None:
        return (
            f"this machine has no GPU that runs it; architectures=[{extension.WITHOUT_GPU}] "
            "compiles it nevertheless."
        )
    try:
        find_nvcc()
    except UserError as error:
        return str(error)
    return ""


def table(report: BuildReport) -> TextTable:
    """Return a table with a row for each function of a report. Functions of several files are shown with
    their file, and functions that spill registers are bold."""
    several = len({row.source for row in report.functions}) > 1
    numbers = ("regs", "shared", "spilled", "stack")
    spilled = [row.spill_stores + row.spill_loads for row in report.functions]
    lines = [
        [
            *[Path(row.source).name] * several,
            re.sub(r"\w+::", "", row.function),  # without namespaces: the title names the kernel
            row.architecture,
            *map(str, (row.registers, row.shared, moved, row.stack)),
        ]
        for row, moved in zip(report.functions, spilled, strict=True)
    ]
    return TextTable(
        f"{report.kernel}: resources of its CUDA functions",
        (*["source"] * several, "function", "arch", *numbers),
        lines,
        numbers,
        strong=[place for place, moved in enumerate(spilled) if moved],
    )


def run(configs: Sequence[BuildConfig]) -> None:
    """Build the kernels in parallel, and write and print each one's report."""
    chosen = device.resolve(configs[0].device)
    compiled = any(one.compiled for config in configs for one in config.entry.loaded.kernel.providers)
    to_try = chosen.kind == "cpu" and compiled and not inductor.is_tried()
    with (
        console.status(f"Compiling {', '.join(config.entry.name for config in configs)} …"),
        inductor.trying() if to_try else nullcontext(),
    ):
        built = dict(zip((config.kernel for config in configs), side_by_side(configs, chosen), strict=True))
    where = results.folder_for(configs[0].output, chosen.kind) / "build"
    for_each(configs, lambda config: show(config, chosen, built[config.kernel]), where)


def side_by_side(configs: Sequence[BuildConfig], chosen: device.Device) -> list[BuildReport | UserError]:
    """Return the report or the error of each kernel. As many kernels are built at a time as there are
    cores."""

    def attempt(config: BuildConfig) -> BuildReport | UserError:
        loaded = config.entry.loaded
        place, sources = Place.for_kernel(loaded), extension.sources(loaded)
        try:
            known = results.read_if_there(BuildReport, report_path(config, chosen)) if config.lazily else None
            if known is not None and resources.is_of_today(place, sources, known, config.architectures):
                place.output.mkdir(parents=True, exist_ok=True)
                return known
            return build_kernel(place, sources, config.architectures)
        except UserError as error:
            return error

    threads = ThreadPoolExecutor(min(len(configs), max(1, device.cpu_threads())))
    try:
        return list(threads.map(attempt, configs))
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        ninja_build.stop()
        raise
    finally:
        threads.shutdown()


def report_path(config: BuildConfig, chosen: device.Device) -> Path:
    """Return the path of a kernel's report."""
    output = results.folder_for(config.output, chosen.kind)
    return results.build_path(output, config.entry.loaded.name, chosen.slug)


def show(config: BuildConfig, chosen: device.Device, built: BuildReport | UserError) -> None:
    """Write a kernel's report and print it. Raises the error of a failed build."""
    if isinstance(built, UserError):
        raise built
    loaded = config.entry.loaded
    results.asked_for(results.build_path(config.output, loaded.name, chosen.slug))
    path = report_path(config, chosen)
    write_atomically(path, built.to_json(indent=1) + b"\n")
    for remark in built.remarks:
        say(remark)
    if built.functions:
        table(built).print(console)
    logs = os.path.relpath(Place.for_kernel(loaded).output)
    where = f"Report in {path}, libraries and compiler logs in {logs}."
    say(where)


if __name__ == "__main__":
    run_each("build", BuildConfig, run)
