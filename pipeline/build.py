"""Stage ``build``: compile a kernel's C++ and CUDA sources, and report what its CUDA functions use."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

import kernels
from pipeline import UserError, unknown
from pipeline.command.config import BuildConfig, console, run_stage
from pipeline.machine import device
from pipeline.machine.compilers import find_cxx, find_nvcc
from pipeline.store import results
from pipeline.store.ledger import write_atomically
from pipeline.toolchain.extension import CUDA_SOURCE, HERE, SOURCES, Place, build
from pipeline.toolchain.resources import BuildReport, resources


def build_kernel(kernel: str, architectures: Sequence[str], place: Place = HERE) -> BuildReport:
    """Build what a kernel's folder has of ``SOURCES`` and say what came of it.

    A machine without a GPU can do without CUDA: if it has no nvcc, the CUDA source is left out with a
    remark. Raises UserError where anything else can't be built.
    """
    sources = [name for name in SOURCES if (place.root / place.source(kernel, name)).is_file()]
    remarks = []
    if CUDA_SOURCE in sources and not device.gpus():
        try:
            find_nvcc()
        except UserError as error:
            sources.remove(CUDA_SOURCE)
            remarks.append(f"{place.source(kernel, CUDA_SOURCE)} was left out: {error}")
    place.folder(kernel).mkdir(parents=True, exist_ok=True)
    libraries = build(kernel, sources, architectures, place)
    cuda = libraries.get(CUDA_SOURCE)
    nvcc = find_nvcc().version if cuda else None
    skipped = cuda.skipped if cuda else ()
    remarks += [f"sm_{name} was left out: nvcc {nvcc} does not know it." for name in skipped]
    return BuildReport(
        kernel=kernel,
        torch=device.installed_torch().version,
        nvcc=nvcc,
        cxx=find_cxx().version if sources else None,
        architectures=cuda.architectures if cuda else (),
        remarks=tuple(remarks),
        functions=tuple(resources(kernel, place)) if cuda else (),
    )


def table(report: BuildReport) -> Table:
    """The functions of a report, one a row."""
    columns = Table(title=f"{report.kernel}: what its CUDA functions use", box=box.SIMPLE_HEAD)
    columns.add_column("function", overflow="fold")
    columns.add_column("arch")
    for name in ("regs", "shared", "spilled", "stack"):
        columns.add_column(name, justify="right")
    for row in report.functions:
        spilled = row.spill_stores + row.spill_loads
        numbers = (row.registers, row.shared, spilled, row.stack)
        style = "yellow" if spilled else None
        function = re.sub(r"\w+::", "", row.function)  # namespaces: the title says what kernel it is
        columns.add_row(function, row.architecture, *map(str, numbers), style=style)
    return columns


def run(kernel: str, report_path: Path, architectures: Sequence[str], place: Place = HERE) -> BuildReport:
    """Build one kernel, write its report and print it. Raises UserError for a kernel that is not there."""
    if kernel not in kernels.names():
        raise unknown("kernel", kernel, kernels.names())
    with console.status(f"Compiling {kernel} …"):
        report = build_kernel(kernel, architectures, place)
    write_atomically(report_path, report.model_dump_json(indent=1).encode() + b"\n")
    for remark in report.remarks:
        console.print(remark, highlight=False, soft_wrap=True)
    if report.functions:
        console.print(table(report))
    folder = os.path.relpath(place.folder(kernel), place.root)
    where = f"Report in {report_path}, libraries and compiler logs in {folder}."
    console.print(where, highlight=False, soft_wrap=True)
    return report


def stage(config: BuildConfig) -> None:
    """The stage as the command line and DVC run it."""
    slug = device.resolve(config.device).slug
    kernel = config.kernel.name
    run(kernel, results.build_path(config.output, kernel, slug), config.architectures)


if __name__ == "__main__":
    run_stage("build", BuildConfig, stage)
