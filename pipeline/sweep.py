"""Stage ``sweep``: verify and time the points of kernels on one device.

    python -m pipeline.sweep kernel=softmax block_size=[512,1024] provider=triton_online
    python -m pipeline.sweep kernel=matmul m=16 n=8192 k=[4096,8192] provider=[torch,triton_tiled]
    python -m pipeline.sweep kernel=gelu,softmax
    python -m pipeline.sweep experiment=llm_vocab_softmax
    python -m pipeline.sweep kernel=softmax cluster=ray
    python -m pipeline.sweep kernel=matmul size=4096 dtype=bfloat16 provider=triton_tiled search=tpe trials=60
    python -m pipeline.sweep kernel=softmax workload=untuned.json
    python -m pipeline.sweep kernel=softmax output=results search=tpe replay=true

Measures the points that each kernel's ledger lacks, appends each row as it is measured, and prints a table at
the end. After an interruption the same command continues.

search=tpe and search=random measure a part of all configurations that the providers declare, including those
that the preset does not list; pins still apply. A search is of one provider at one problem. trials=N limits
the configurations of each search, with those in the ledger. seconds=N limits the time of all searches of a
kernel, which share it evenly. replay=true replays a search on the grids in the ledgers, and shows how near it
comes to the best configuration.
"""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.lock import DeviceLock

from . import ROOT
from .command.options import SweepConfig
from .command.run import UnsuccessfulError, console, run_each, say, warn
from .execution import controls, debugging
from .execution.device_group import DeviceGroup
from .execution.session import supervisor
from .keys import identity
from .points import notation
from .points.plan import Target
from .reporting.sweep_output import Found, failures_of_own, in_words
from .store import results, runs
from .store.rows_that_count import own_rows
from .sweeping.kernel_sweep import KernelSweep, planned


def run(configs: Sequence[SweepConfig]) -> None:
    """Measure the points that the ledgers lack, print the tables, and publish. Raises UnsuccessfulError if
    own providers failed."""
    first = configs[0]  # the configurations differ in the kernel only
    if first.replay:
        replay(configs)
    elif first.cluster is not None:
        from .sweeping import cluster_sweep

        conclude(*cluster_sweep.run(configs, first.cluster))
    elif first.debug:
        debug(configs, device.resolve_all(first.device)[0])
    else:
        conclude(*here(configs, device.resolve_all(first.device)))


def here(configs: Sequence[SweepConfig], devices: Sequence[device.Device]) -> tuple[list[KernelSweep], float]:
    """Measure every kernel on devices of this host. Returns the sweeps and the seconds that they took."""
    first = configs[0]
    with ExitStack() as stack:
        # Runs in a thread, because it waits for compilers to print their versions.
        environment = stack.enter_context(ThreadPoolExecutor(1)).submit(fingerprint, devices[0])
        plans = planned(configs, target_of(devices[0]))  # before the locks: mistakes are reported at once
        for chosen in devices:  # before a ledger is read, so that rows of an earlier sweep are in it
            stack.enter_context(DeviceLock(chosen, first.wait_s, warn))
        workers = [
            stack.enter_context(
                supervisor(chosen, first.timing.settings, first.seed, first.point_timeout_s, heeds_load=True)
            )
            for chosen in devices
        ]
        for chosen in devices:
            if count := controls.neighbours(chosen, measuring=False):
                warn(f"{count} other process{'es' * (count > 1)} compute on {chosen}: times may be longer.")
        begin = monotonic()
        group = stack.enter_context(DeviceGroup(devices, workers, environment.result()))
        # All are prepared before the first is measured, so that the next kernel compiles meanwhile.
        sweeps = [KernelSweep(config, group, wanted) for config, wanted in zip(configs, plans, strict=True)]
        for sweep in sweeps:
            sweep.prepare()
        for why in identity.unknown_commits([one.identity for one in sweeps if one.provenance is not None]):
            warn(why)
        for sweep in sweeps:
            sweep.finish()
        return sweeps, monotonic() - begin


def replay(configs: Sequence[SweepConfig]) -> None:
    """Replay the search on each ledger's grids, and print tables. Raises UserError if no ledger has a
    grid."""
    from .reporting import replays  # imports pandas and optuna

    is_shown = False
    for config in configs:
        name, sampler = config.entry.name, config.search
        assert sampler != "exhaustive", "the options are checked"
        for folder in results.folders_of(config.output):
            for path in results.listed(folder, f"timings/{name}/*.jsonl", warn):
                rows = own_rows(path, warn)
                if found := replays.grids(config.entry, rows, config.pin, config.provider):
                    title = f"{name} on {path.stem}"
                    replays.searched(found, sampler, config.ahead, title).print(console)
                    is_shown = True
    if not is_shown:
        raise UserError(
            f"{configs[0].output} has no grid of {replays.FEWEST} configurations of one provider at one "
            "problem with these options; measure a grid with a sweep, or name another folder by output=."
        )


def conclude(sweeps: Sequence[KernelSweep], seconds: float) -> None:
    """Sum up several sweeps, and publish each. Raises UnsuccessfulError as ``judge`` does."""
    if len(sweeps) > 1:
        measured = sum(len(sweep.measured) for sweep in sweeps)
        kernels = len({sweep.entry.name for sweep in sweeps})
        several = f"{kernels} kernels" if kernels > 1 else f"{len(sweeps)} models"
        say(f"{several}: {notation.points(measured)} measured in {seconds:.1f} s.")
    for sweep in sweeps:
        if sweep.config.tracking.name != "none":
            publish(sweep.config, sweep)
    rows = ((sweep.entry, row) for sweep in sweeps for row in sweep.sweep_output().current())
    judge(((entry, row.point, row.outcome) for entry, row in rows), sweeps[0].config.allow or ())


def target_of(chosen: device.Device) -> Target:
    """Return the target of plans for a device of this host."""
    return Target(chosen.kind, device.capabilities(chosen))


def debug(configs: Sequence[SweepConfig], chosen: device.Device) -> None:
    """Call each point once in this process, and print its outcome. Raises UnsuccessfulError as ``judge``
    does."""
    debugging.prepare(chosen)
    say("debug=true: each point is called once in this process. Nothing is timed, and no row is written.")
    found = []
    try:
        for config, wanted in zip(configs, planned(configs, target_of(chosen)), strict=True):
            for point in wanted.points:
                outcome = debugging.call(config.entry.loaded.where, point, chosen, config.seed)
                found.append((config.entry, point, outcome))
                say(f"{point}: {in_words(outcome)}")
    except BdbQuit:
        raise UnsuccessfulError("the debugger was left, so the remaining points were not called.") from None
    judge(found, configs[0].allow or ())


def judge(found: Iterable[Found], allowed: Sequence[str]) -> None:
    """Check for failures. Raises UnsuccessfulError if points of own providers failed in a way that is not
    allowed."""
    if sentence := failures_of_own(found, allowed):
        raise UnsuccessfulError(sentence)


def publish(config: SweepConfig, sweep: KernelSweep) -> None:
    """Publish the table's rows to MLflow: the ad-hoc sweeps that measured them, or the repository's
    results."""
    from .tracking import publisher
    from .tracking.publisher import Selection, Tracker

    sources = Selection(
        input=config.output, kernel=sweep.entry.name, reports=ROOT / "reports", artifacts=ROOT / "artifacts"
    )
    if results.is_ad_hoc(sweep.output):
        measured = frozenset(row.origin.run for row in sweep.rows())
        sources = Selection(runs=runs.folder_in(sweep.output), kernel=sweep.entry.name, ids=measured)
    publisher.publish(sources, Tracker(config.tracking.name, config.tracking.uri), say)


if __name__ == "__main__":
    run_each("sweep", SweepConfig, run)
