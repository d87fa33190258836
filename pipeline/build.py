"""Stage ``build``: compile a kernel's C++ and CUDA sources, and report what its CUDA functions use.

python -m pipeline.build kernel=softmax
python -m pipeline.build kernel=path/to/a/folder architectures=[90]
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from pipeline import UserError
from pipeline.command.options import BuildConfig
from pipeline.command.run import console, run_stage
from pipeline.machine import device
from pipeline.machine.compilers import find_cxx, find_nvcc
from pipeline.machine.torch import installed_torch
from pipeline.store import results
from pipeline.store.files import write_atomically
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Place, is_cuda
from pipeline.toolchain.resources import BuildReport, FunctionResources, resources


def build_kernel(place: Place, sources: Sequence[str], architectures: Sequence[str]) -> BuildReport:
    """Build a kernel's sources and say what came of it.

    A machine without a GPU can do without CUDA: if it has no nvcc, CUDA sources are left out with a remark.
    Raises UserError where anything else can't be built.
    """
    remarks = []
    wanted = list(sources)
    if any(map(is_cuda, wanted)) and not device.gpus():
        try:
            find_nvcc()
        except UserError as error:
            remarks += [f"{place.source(name)} was left out: {error}" for name in wanted if is_cuda(name)]
            wanted = [name for name in wanted if not is_cuda(name)]
    # DVC asks for the folder of a kernel that has no sources too.
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
        functions=tuple(row for name in cuda for row in resources(place, name)),
    )


def table(report: BuildReport) -> Table:
    """The functions of a report, one a row; where they come from several files, each with its file."""
    columns = Table(title=f"{report.kernel}: what its CUDA functions use", box=box.SIMPLE_HEAD)
    several = len({row.source for row in report.functions}) > 1
    if several:
        columns.add_column("source")
    columns.add_column("function", overflow="fold")
    columns.add_column("arch")
    for name in ("regs", "shared", "spilled", "stack"):
        columns.add_column(name, justify="right")
    for row in report.functions:
        source = [Path(row.source).name] * several
        columns.add_row(*source, *_cells(row), style="yellow" if _spilled(row) else None)
    return columns


def _cells(row: FunctionResources) -> list[str]:
    function = re.sub(r"\w+::", "", row.function)  # namespaces: the title says what kernel it is
    numbers = (row.registers, row.shared, _spilled(row), row.stack)
    return [function, row.architecture, *map(str, numbers)]


def _spilled(row: FunctionResources) -> int:
    return row.spill_stores + row.spill_loads


def run(config: BuildConfig) -> None:
    """Build one kernel, write its report and print it."""
    loaded = config.entry.loaded
    place = Place.of(loaded)
    chosen = device.resolve(config.device)
    with console.status(f"Compiling {loaded.name} …"):
        report = build_kernel(place, extension.sources(loaded), config.architectures)
    results.asked_for(results.build_path(config.output, loaded.name, chosen.slug))
    output = results.folder_for(config.output, chosen.kind)
    path = results.build_path(output, loaded.name, chosen.slug)
    write_atomically(path, report.model_dump_json(indent=1).encode() + b"\n")
    for remark in report.remarks:
        console.print(remark, highlight=False, soft_wrap=True)
    if report.functions:
        console.print(table(report))
    where = f"Report in {path}, libraries and compiler logs in {os.path.relpath(place.output)}."
    console.print(where, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    run_stage("build", BuildConfig, run)
