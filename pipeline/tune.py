"""Stage ``tune``: write the table of the fastest configurations, from which callers get a provider.

    python -m pipeline.tune
    python -m pipeline.tune output=results
    python -m pipeline.tune output=results device=cuda:1
    python -m pipeline.tune output=results gpu=nvidia-h200 kernel=attention
    python -m pipeline.tune output=results replay=true

The table covers every kernel of this repository with times in the ledgers. It holds the fastest configuration
and the runner-up at each problem, and how far the rule may be trusted between these problems. This stage
measures nothing. Only rows with the current source, measurement version and environment count; the number of
other rows is printed. With ``gpu`` it writes the table of another machine's GPU, for its recorded
environment. With ``kernel`` the other kernels stay in the table as they are. docs/tuned.md explains the
table.

With ``replay`` it shows how good the choices between tuned problems are. Each problem of a ledger is left out
in turn, and a configuration is chosen by the other problems, as for a caller. The regret is how much longer
the choice takes than the fastest configuration in the ledger. The errors of predicted times and the choices
by another GPU's table follow. Old rows are used, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from kernel_pipeline import loading, problems
from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.ops import table
from kernel_pipeline.ops.chooser import rule_digest
from kernel_pipeline.ops.table import Table, TableError, TunedKernel
from kernel_pipeline.records.environment import UNKEYED, Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.settings import TimingSettings

from . import as_typed
from .command.options import TuneConfig
from .command.run import console, run_stage, say, warn
from .inspection.occupancy import limits_of
from .keys.identity import Identity
from .keys.old_rows import OldRows, reasons
from .points import catalog
from .points.catalog import Entry
from .reporting import rule_replays
from .reporting.rule_replays import LedgerTimes
from .reporting.summary import tuned_table
from .store import finals, provenance, results
from .store.rows_that_count import own_rows
from .verdicts import tuning

OF_THE_HOST = {"cpu", "cpu_threads", "platform", "python", "host", "cxx"}
"""The fields of an environment on which a GPU's numbers don't depend: another host writes the same table."""


def run(config: TuneConfig) -> None:
    """Write the table and print it. Raises UserError if there is no folder with results."""
    if not config.output.is_dir():
        raise UserError(
            f"output={config.output} is not a folder with results: measure a kernel, or name another folder."
        )
    if config.replay:
        replay(config)
        return
    begin = monotonic()
    environment = _here(config.device) if config.gpu is None else _recorded(config.output, config.gpu)
    slug, l2_bytes = environment.gpu, environment.l2_bytes or 0
    folder = results.folder_for(config.output, environment.kind)
    results.asked_for(results.tuned_path(config.output, slug))
    path = results.tuned_path(folder, slug)
    found: dict[str, TunedKernel] = {}
    old = OldRows()
    for name in _names(config):
        ledger = results.ledger_path(folder, name, slug)
        if not ledger.is_file():
            continue
        entry = catalog.find(name)
        rows = own_rows(ledger, warn)
        # ``measured`` accepts rows of any settings, so these are arbitrary.
        identity = Identity(entry.loaded, environment, TimingSettings(), 0)
        some = tuning.measured(entry, rows, identity)
        runs = provenance.read(provenance.beside(ledger))
        for row in rows:
            if row.outcome.timing is not None and not _is_current(entry, row, identity):
                old.add(reasons(row, identity, runs, any_settings=True))
        held = finals.newest(finals.read(finals.path(folder, name, slug), warn))
        made = tuning.of_kernel(entry, some, held, limits_of(environment), l2_bytes)
        if made is not None:
            found[name] = made
    if old.count:
        say(f"{old.said('timed row')}. They were left out.")
    if not found:
        sound = f"a time of {slug} that is neither old nor in doubt"
        say(f"No ledger in {folder} has {sound}: no table was written.")
        return
    made_table = _table(environment, found)
    kept = {} if config.kernel is None else _kept(path, made_table)
    write_atomically(path, table.text(replace(made_table, kernels=kept | found)).encode())
    tuned_table(made_table).print(console)
    count = sum(len(one.problems) for one in found.values())
    seconds = monotonic() - begin
    say(f"{count} problem{'s' * (count > 1)} of {', '.join(found)}, {seconds:.1f} s: {path}.")


def replay(config: TuneConfig) -> None:
    """Print the rule's regrets for each ledger, the errors of predicted times, and the regrets between GPUs
    of the same compute capability. Raises UserError if there is no ledger."""
    found = []
    for name in _names(config):
        entry = catalog.find(name)
        for ledger in results.listed(config.output, f"timings/{name}/{config.gpu or '*'}.jsonl", warn):
            some = tuning.measured(entry, own_rows(ledger, warn), None)
            if not some:
                continue
            environment = _recorded(config.output, ledger.stem)
            l2_bytes = environment.l2_bytes or 0
            made = tuning.of_kernel(entry, some, (), limits_of(environment), l2_bytes)
            if made is not None:
                times = tuning.compared(entry.loaded.kernel, tuning.times_of(entry, some, l2_bytes))
                found.append(LedgerTimes(entry.loaded, _table(environment, {name: made}), times))
    if not found:
        raise UserError(
            f"{config.output} has no ledger: measure a kernel, or name another folder by output=."
        )
    for one in found:
        rule_replays.regretted(one).print(console)
    rule_replays.predicted(found).print(console)
    for table_ in rule_replays.by_siblings(found):
        table_.print(console)


def _table(environment: Environment, kernels: dict[str, TunedKernel]) -> Table:
    """Return the table of the GPU of an environment."""
    return Table(
        gpu=environment.gpu,
        name=environment.name,
        compute_capability=environment.compute_capability,
        multiprocessors=environment.multiprocessors or 0,
        shared_memory=environment.shared_memory or 0,
        l2_bytes=environment.l2_bytes or 0,
        environment=_of_table(environment),
        rule=rule_digest(),
        kernels=kernels,
    )


def _names(config: TuneConfig) -> Sequence[str]:
    """Return the names of the kernels that the options choose. Raises UserError for an unknown one."""
    known = loading.names()
    for name in config.kernel or ():
        if name not in known:
            raise unknown("kernel", name, known)
    return known if config.kernel is None else config.kernel


def _kept(path: Path, made: Table) -> dict[str, TunedKernel]:
    """Return the kernels of the table in a file; none without a file. Raises UserError for a table of another
    version of the rule, or of another environment."""
    if not path.is_file():
        return {}
    try:
        before = table.read(path, made.gpu)
    except TableError as error:
        raise UserError(f"{path} {error}: leave kernel= out, and all kernels are tuned.") from error
    for name in ("rule", "environment"):
        if getattr(before, name) != getattr(made, name):
            raise UserError(f"{path} is of another {name}: leave kernel= out, and all kernels are tuned.")
    return dict(before.kernels)


def _here(wanted: str) -> Environment:
    """Return the environment of this machine's device."""
    return fingerprint(device.resolve(wanted))


def _recorded(folder: Path, gpu: str) -> Environment:
    """Return the environment in which a GPU was measured. Raises UserError if it is missing or lacks the
    GPU's properties."""
    path = results.environment_path(folder, gpu)
    if not path.is_file():
        there = sorted(one.stem for one in path.parent.glob("*.json"))
        raise unknown("gpu", gpu, there)
    environment = results.read(Environment, path)
    needed = environment.l2_bytes, environment.multiprocessors, environment.shared_memory
    if environment.kind == "cuda" and None in needed:
        raise UserError(
            f"{path} lacks the size of the L2 cache, the number of multiprocessors or the shared memory: run "
            f"{as_typed('environment')} on that machine."
        )
    return environment


def _is_current(entry: Entry, row: Measurement, identity: Identity) -> bool:
    return problems.declares(entry.loaded.kernel, row.point) and tuning.is_current(row, identity)


def _of_table(environment: Environment) -> dict[str, object]:
    left_out = UNKEYED | (OF_THE_HOST if environment.kind == "cuda" else set())
    fields = environment.to_dict(exclude=left_out)
    return {name: value for name, value in fields.items() if value not in (None, {})}


if __name__ == "__main__":
    run_stage("tune", TuneConfig, run)
