"""Sweep several kernels on every GPU model of a cluster, all models at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from threading import Lock
from time import monotonic

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import drawn, flags

from ..cluster.actor import Assignment
from ..cluster.cluster_devices import ClusterDevices, groups_of
from ..command.options import SweepConfig
from ..command.run import console, warn
from ..command.values import Engine
from ..keys import identity
from ..reporting.terminal import Bars
from .kernel_sweep import KernelSweep, planned


def run(configs: Sequence[SweepConfig], engine: Engine) -> tuple[list[KernelSweep], float]:
    """Measure every kernel on each GPU model of the cluster. Each model writes its own ledgers.

    Returns the sweeps and their total time in seconds. Raises UserError with ``debug=true`` and for a kernel
    outside of this repository."""
    first = configs[0]
    if first.debug:
        raise UserError("debug=true calls each point in this process; leave cluster= out.")
    for loaded in (config.entry.loaded for config in configs if config.entry.loaded.is_outside):
        raise UserError(
            f"{loaded.folder} is outside of this repository, and only the repository is sent to a "
            "cluster: leave cluster= out, or measure a kernel of kernels/."
        )
    with ExitStack() as stack:
        kind = kind_of(first.device)
        assignment = Assignment(
            kind=kind,
            settings=first.timing.settings,
            seed=first.seed,
            timeout_s=first.point_timeout_s,
            wait_s=first.wait_s,
            kernels=tuple(config.entry.loaded.where for config in configs),
            flags=flags(kind),
            drawn=drawn(),
        )
        groups = stack.enter_context(groups_of(engine, assignment, warn))
        begin = monotonic()
        plans = [planned(configs, group.target) for group in groups]
        bars = stack.enter_context(Bars(console))
        said: set[str] = set()
        saying = Lock()

        def measured(group: ClusterDevices) -> list[KernelSweep]:
            found = []
            for config, wanted in zip(configs, plans[groups.index(group)], strict=True):
                sweep = KernelSweep(config, group, wanted, bars)
                found.append(sweep)
                sweep.prepare()
                with saying:  # all models measure the same tree: print each sentence once
                    sentences = identity.unknown_commits([sweep.identity] if sweep.provenance else [])
                    for sentence in sorted({*sentences} - said):
                        said.add(sentence)
                        warn(sentence)
                sweep.finish()
            return found

        sweeps = at_once(groups, measured)
        return [sweep for several in sweeps for sweep in several], monotonic() - begin


def kind_of(wanted: Sequence[str]) -> str:
    """Return the kind of device that ``device=`` means on a cluster. Raises UserError for a device of one
    host."""
    if list(wanted) == ["cpu"]:
        return "cpu"
    if len(wanted) == 1 and wanted[0] in ("auto", "cuda", "all"):
        return "cuda"
    raise UserError(
        f"device={','.join(wanted)} names a device of one host, and cluster= takes every GPU of every host: "
        "leave device= out, or write device=cpu."
    )


def at_once(
    groups: Sequence[ClusterDevices], measured: Callable[[ClusterDevices], list[KernelSweep]]
) -> list[list[KernelSweep]]:
    """Run ``measured`` for every group, each in its own thread.

    If a group fails, the others finish before its error is raised. Ctrl-C stops all groups; the
    KeyboardInterrupt then carries a note on the progress of each."""
    with ThreadPoolExecutor(len(groups)) as threads:
        futures = [threads.submit(measured, group) for group in groups]
        try:
            wait(futures)
        except KeyboardInterrupt as stop:
            for group in groups:
                group.stop()
            for future in futures:
                for note in getattr(future.exception(), "__notes__", ()):
                    stop.add_note(note)
            raise
        return [future.result() for future in futures]
