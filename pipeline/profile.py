"""Stage ``profile``: torch.profiler's tables and traces.

    python -m pipeline.profile kernel=gelu
    python -m pipeline.profile kernel=square provider=torch_square stacks=true

Looks at each provider at a small, a middle and a large size, at its best configuration by the ledger. Says in
a sentence what a call launches, and where its time goes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from kernels.point import Point
from rich import box
from rich.table import Table

import kernels
from kernels.contract import DTYPES, Kernel
from pipeline import UserError
from pipeline.command.config import ROOT, ProfileConfig, console, run_stage
from pipeline.execution.trial import bind
from pipeline.inspection.profiler import ACTIVE, Profiled, a_call, record
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points import grid
from pipeline.points.choice import each_provider, few, grids_of_first
from pipeline.points.notation import variant
from pipeline.reporting.table import number, print_wide
from pipeline.store import results
from pipeline.store.evidence import ProfileRow, joined, write_lines
from pipeline.store.ledger import write_atomically
from pipeline.toolchain import extension

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)


def run(config: ProfileConfig) -> None:
    """Profile the points, write their rows, tables and traces, and print the sentences."""
    # Inductor's own pool of compile processes costs more to start than a kernel takes.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    chosen = device.resolve(config.device)
    if chosen.uuid is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
    kernel = kernels.load(config.kernel.name)
    grids = config.grids()
    # A CPU takes seconds over a large size, and shows the same table.
    sizes = config.size or few(map(int, grids[0]["size"]))[: 2 if chosen.kind == "cpu" else None]
    points = grid.expand(
        kernel, config.provider, grids_of_first(grids, sizes, config.dtype or grids[0]["dtype"][:1])
    )
    writable(config.tensorboard)
    environment = device.fingerprint(chosen)
    timed = results.timed([config.output, ROOT / "results"], kernel.name, chosen.slug, warn)
    folder = config.artifacts / "profile" / kernel.name / chosen.slug
    shutil.rmtree(folder, ignore_errors=True)
    sources = {p.name: grid.source_digest(kernel.name, p) for p in kernel.providers}
    rows = []
    # No live status: its thread would stand in every profile with stacks.
    console.print(f"Profiling {kernel.name} …", highlight=False)
    with DeviceLock(chosen, config.wait_s, warn):
        for one in each_provider(points, timed):
            key = grid.key(
                one.point, sources[one.point.provider], environment.digest, config.timing, config.seed
            )
            common = {**joined(one.point, key), "environment": environment.digest}
            rows.append(profiled(config, kernel, one.point, chosen, common))
    path = results.profile_path(config.output, kernel.name, chosen.slug)
    write_lines(path, [row.model_dump(mode="json") for row in rows])
    print_wide(console, table(rows, f"{kernel.name} on {chosen.slug}: a call under torch.profiler"))
    for row in rows:
        if row.status == "ok":
            console.print(
                f"{variant(point_of(row))} {row.extent}: {row.sentence}", highlight=False, soft_wrap=True
            )
    console.print(f"{len(rows)} rows: {path}, tables and traces: {folder}", highlight=False, soft_wrap=True)


def writable(folder: Path | None) -> None:
    """Raises UserError for a folder of TensorBoard's that can't be written, before anything is profiled."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"tensorboard={folder} can't be written to ({error.strerror}): name another folder."
        ) from error


def profiled(
    config: ProfileConfig, kernel: Kernel, point: Point, chosen: device.Device, common: dict[str, Any]
) -> ProfileRow:
    """The row of one point; its table and its trace are written."""
    shape, kind = kernel.shape_of(point), chosen.kind
    provider = kernel.provider(point.provider)
    common = common | {"shape": shape}
    reason = provider.unsupported(point, shape)
    if reason is None and kind not in provider.devices:
        reason = "runs on a CPU only" if kind == "cuda" else "needs a GPU"
    if reason is not None:
        return ProfileRow(status="unavailable", reason=reason, sentence=f"not profiled: {reason}", **common)
    try:
        if provider.extension is not None:
            extension.load(point.kernel, provider.extension)
        inputs = kernel.inputs(shape, DTYPES[point.dtype], torch.device(kind), config.seed)
        found = record(bind(provider, point), inputs, common["key"], config.stacks, config.tensorboard)
    except Exception as error:  # whatever a provider raises is its own row's fate
        words = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return ProfileRow(status="error", reason=words, sentence=f"not profiled: {words}", **common)
    base = config.artifacts / "profile" / kernel.name / chosen.slug / f"{variant(point)}-{point.extent}"
    table_path, trace_path = base.with_suffix(".txt"), base.with_suffix(".json.gz")
    write_atomically(table_path, found.table.encode() + b"\n")
    write_atomically(trace_path, found.trace)
    launched = a_call(found.launches)
    return ProfileRow(
        status="ok",
        operators=found.operators,
        kernels=launched,
        outermost=found.outermost,
        chain=found.chain,
        host_us=round(found.host_us, 3),
        device_us=round(sum(one.us for one in launched), 3) if kind == "cuda" else None,
        launches=len(found.launches) / ACTIVE if kind == "cuda" else None,
        sentence=sentence(found, kind),
        table=str(table_path.relative_to(config.artifacts)),
        trace=str(trace_path.relative_to(config.artifacts)),
        **common,
    )


def sentence(found: Profiled, kind: str) -> str:
    """What the table shows."""
    counts = Counter(found.outermost)
    calls = found.chain or ", ".join(f"{name}" + f" x{n}" * (n > 1) for name, n in counts.items())
    if kind == "cpu":
        own = [one for one in found.operators if one.self_cpu_us > 0]
        longest = max(own, key=lambda one: one.self_cpu_us, default=None)
        total = sum(one.self_cpu_us for one in own)
        share = f", {longest.self_cpu_us / total:.0%} of it in {longest.name}" if longest and total else ""
        plural = "s" * (counts.total() != 1)
        return f"a call is {counts.total()} operator{plural} ({calls}); {number(found.host_us)} us{share}"
    launched = a_call(found.launches)
    names = ", ".join(short(one.name) + f" x{one.launches:g}" * (one.launches != 1) for one in launched)
    count = sum(one.launches for one in launched)
    busy = sum(one.us for one in launched)
    return (
        f"a call ({calls}) launches {count:g} device kernel{'s' * (count != 1)}: {names}; "
        f"{number(busy)} us on the device, {number(found.host_us)} us on the host until the last launch"
    )


def short(name: str) -> str:
    """A device kernel's name without result, namespaces and parameters, its template arguments cut short."""
    plain = re.sub(r"\((?!anonymous).*$", "", name.removeprefix("void "))
    plain = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", plain)
    return plain if len(plain) <= 70 else f"{plain[:67]}..."


def point_of(row: ProfileRow) -> Point:
    """The point that a row is about."""
    return Point(
        row.kernel,
        str(row.provider),
        int(row.size or 0),
        str(row.dtype),
        row.block_size,
        row.num_warps,
        row.num_stages,
        row.rows,
    )


def table(rows: Sequence[ProfileRow], title: str) -> Table:
    """A row a point: what a call costs and launches; and what was not profiled, and why."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("point", overflow="fold")
    for name in ("size", "launches", "device us", "host us"):
        shown.add_column(name, justify="right")
    shown.add_column("longest", overflow="fold")
    for row in rows:
        longest = next(iter(row.operators), None)
        shown.add_row(
            variant(point_of(row)),
            row.extent,
            "" if row.launches is None else f"{row.launches:g}",
            number(row.device_us),
            number(row.host_us),
            short(longest.name) if longest else row.sentence,
        )
    return shown


if __name__ == "__main__":
    run_stage("profile", ProfileConfig, run)
