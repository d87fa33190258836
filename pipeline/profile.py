"""Stage ``profile``: record a call's launches and times by torch.profiler.

    python -m pipeline.profile kernel=gelu
    python -m pipeline.profile kernel=square provider=torch_square stacks=true
    python -m pipeline.profile kernel=matmul size=4096 tensorboard=outputs/tensorboard

Profiles each provider at a small, a middle and a large problem, in its best configuration of the ledger.
Presets for a first look take only the large problem, and without provider= only the leading providers. Prints
a sentence on the launches and times of a call. A point is profiled again only if stacks or TensorBoard's
traces are asked for. Stacks add a flame graph of each point.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from kernel_pipeline import json_lines, tracebacks
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.credentials import masked
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain import inductor

from . import as_typed
from .command.options import ProfileConfig
from .command.run import console, for_each, run_each, say, warn
from .inspection import flame
from .inspection.profiler import ACTIVE, Profiled, a_call, record
from .inspection.target import KernelTarget
from .points.choice import each_provider, leading
from .points.notation import file_name
from .points.notation import title as title_of
from .reporting.numbers import number
from .reporting.tables import TextTable
from .store import results
from .store.evidence import ProfileRow, committed, joined, read_lines


def run(configs: Sequence[ProfileConfig]) -> None:
    """Run ``of_kernel`` for each kernel."""
    chosen = device.resolve(configs[0].device)  # once, before CUDA_VISIBLE_DEVICES is set
    where = results.folder_for(configs[0].output, chosen.kind) / "profile"
    for_each(configs, partial(of_kernel, chosen=chosen), where)


def of_kernel(config: ProfileConfig, chosen: device.Device) -> None:
    """Profile the missing points, write rows, tables and traces, and print the sentences."""
    writable(config.tensorboard)
    stage = Profile(
        config, KernelTarget(config.entry, chosen, config.timing.settings, config.seed, config.output)
    )
    points, left_out = stage.target.points(
        config.preset.name, config.pin, config.provider, chosen.kind, config.preset.few
    )
    timed = stage.target.timed(warn)
    every = each_provider(stage.target.kernel, points, timed)
    near = config.preset.near if config.provider is None else None
    new = every if near is None else leading(stage.target.kernel, every, timed, near)
    wanted = {stage.target.identity.key(one.point): one.point for one in every}
    known = stage.known()
    of_new = {one.point for one in new}
    missing = {key: point for key, point in wanted.items() if key not in known and point in of_new}
    rows = stage.profile(wanted, missing, known)
    stage.forget(rows)
    if wanted and not missing:
        say(f"Nothing to profile: {stage.path} holds every point.")
        if not stage.folder.is_dir():
            makes = as_typed("profile", f"kernel={stage.target.entry.loaded.where}")
            say(f"Tables and traces are not in this clone: {makes} makes them in outputs/.")
        return
    if rows:
        stage.show(rows)
    for line in left_out:
        say(line)
    made = [row for row in rows if row.key in missing]
    failed = sum(row.status != "ok" for row in made)
    say(
        f"{len(made) - failed} of {len(rows)} points profiled{f', {failed} failed' * (failed > 0)}: "
        f"{stage.path}, tables and traces: {stage.folder}"
    )


class Profile:
    """One run over points of one kernel on one device."""

    def __init__(self, config: ProfileConfig, target: KernelTarget) -> None:
        self.config = config
        self.target = target
        name = target.entry.name
        self.path = results.profile_path(target.output, name, target.slug)
        self.folder = config.artifacts / "profile" / name / target.slug
        results.asked_for(results.profile_path(config.output, name, target.slug))
        self.folder.parent.mkdir(parents=True, exist_ok=True)

    def known(self) -> dict[str, ProfileRow]:
        """Return the rows of points that need not be profiled again, by key. Such a row has no error; either
        its table and trace exist, or the row is in git.
        """
        if self.config.stacks or self.config.tensorboard is not None:
            return {}
        rows = read_lines(self.path, ProfileRow, warn)
        in_git = committed(self.path, rows)
        return {
            row.key: row
            for row in rows
            if row.key is not None
            and row.status == "ok"
            and (
                row in in_git
                or all((self.config.artifacts / str(name)).is_file() for name in (row.table, row.trace))
            )
        }

    def profile(
        self, wanted: Mapping[str, Point], missing: Mapping[str, Point], known: Mapping[str, ProfileRow]
    ) -> list[ProfileRow]:
        """Profile the missing points, and return the rows of the wanted points. Each row is written at
        once.
        """
        rows = {key: known[key] for key in wanted if key in known}
        json_lines.write(self.path, rows.values())
        if missing:
            os.environ |= inductor.variables()
            if self.target.device.uuid is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self.target.device.uuid
            importlib.import_module(
                "kernel_pipeline.execution.instance"
            )  # imports torch before the device is locked
            # No live status: its thread would be in every profile with stacks.
            say(f"Profiling {self.target.entry.name} …")
            with DeviceLock(self.target.device, self.config.wait_s, warn):
                for key, point in missing.items():
                    rows[key] = self.profiled(key, point)
                    rows = {one: rows[one] for one in wanted if one in rows}
                    json_lines.write(self.path, rows.values())
        return list(rows.values())

    def profiled(self, key: str, point: Point) -> ProfileRow:
        """Profile one point, write its table and its trace, and return its row."""
        import torch

        from kernel_pipeline.execution import instance

        kind = self.target.device.kind
        common = {
            **joined(point, key),
            "environment": self.target.environment.digest,
        }
        try:
            found = instance.standalone(self.target.entry.loaded.where, point)
            inputs = found.inputs(torch.device(kind), self.config.seed)
            seen = record(found.call, inputs, key, self.config.stacks, self.config.tensorboard)
        except Exception as error:  # a provider may raise anything; its row says so
            reason = " ".join(tracebacks.named(error).split())[:500]
            return ProfileRow(status="error", reason=reason, sentence=f"not profiled: {reason}", **common)
        finally:
            for path in self.config.tensorboard.glob(f"{key}.*") if self.config.tensorboard else ():
                path.write_text(masked(path.read_text()))
        # Not with_suffix: a point's name may have dots.
        table_path, trace_path = (
            self.folder / f"{file_name(point)}{suffix}" for suffix in (".txt", ".json.gz")
        )
        write_atomically(table_path, masked(seen.table).encode() + b"\n")
        recorded = gzip.decompress(seen.trace).decode()
        trace = masked(recorded)
        write_atomically(
            trace_path, seen.trace if trace == recorded else gzip.compress(trace.encode(), mtime=0)
        )
        flame_path = self.folder / f"{file_name(point)}.svg" if self.config.stacks else None
        if flame_path is not None:
            picture = flame.svg(json.loads(trace), title_of(point))
            write_atomically(flame_path, picture)
        launched = a_call(seen.launches)
        return ProfileRow(
            status="ok",
            operators=seen.operators,
            kernels=launched,
            outermost=seen.outermost,
            chain=seen.chain,
            host_us=round(seen.host_us, 3),
            device_us=round(sum(one.us for one in launched), 3) if kind == "cuda" else None,
            launches=len(seen.launches) / ACTIVE if kind == "cuda" else None,
            sentence=sentence(seen, kind),
            table=str(table_path.relative_to(self.config.artifacts)),
            trace=str(trace_path.relative_to(self.config.artifacts)),
            flame_graph=None if flame_path is None else str(flame_path.relative_to(self.config.artifacts)),
            **common,
        )

    def forget(self, rows: Sequence[ProfileRow]) -> None:
        """Delete this device's tables and traces that no row names."""
        named = {
            self.config.artifacts / name
            for row in rows
            for name in (row.table, row.trace, row.flame_graph)
            if name
        }
        for path in self.folder.glob("*"):
            if path not in named:
                path.unlink()

    def show(self, rows: Sequence[ProfileRow]) -> None:
        """Print the table, and a sentence for each point."""
        table(rows, f"{self.target.title}: a call under torch.profiler").print(console)
        for row in rows:
            if row.status == "ok" and row.point is not None:
                say(f"{title_of(row.point)}: {row.sentence}")
            if row.flame_graph is not None:
                path = self.config.artifacts / row.flame_graph
                say(f"Flame graph: {path}")


def writable(folder: Path | None) -> None:
    """Check TensorBoard's folder. Raises UserError if it can't be written."""
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


def sentence(found: Profiled, kind: str) -> str:
    """Return the row's sentence: operators, launches, and times of a call."""
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
    """Return a device kernel's name without result, namespaces and parameters; a long name is cut."""
    plain = re.sub(r"\((?!anonymous).*$", "", name.removeprefix("void "))
    plain = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", plain)
    return plain if len(plain) <= 70 else f"{plain[:67]}..."


def table(rows: Sequence[ProfileRow], title: str) -> TextTable:
    """Return a table with a row for each point: a call's launches and times, or the error."""
    numbers = ("launches", "device us", "host us")
    lines = []
    for row in rows:
        longest = next(iter(row.operators), None)
        lines.append(
            [
                title_of(row.point) if row.point is not None else "",
                "" if row.launches is None else f"{row.launches:g}",
                number(row.device_us),
                number(row.host_us),
                short(longest.name) if longest else row.sentence,
            ]
        )
    return TextTable(title, ("point", *numbers, "longest"), lines, numbers)


if __name__ == "__main__":
    run_each("profile", ProfileConfig, run)
