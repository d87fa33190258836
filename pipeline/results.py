"""Name the best configurations in the results, take another clone's results, or remove old rows.

    python -m pipeline.results best kernel=softmax columns=16384 dtype=bfloat16 gpu=nvidia-h100-80gb-hbm3
    python -m pipeline.results best kernel=softmax gpu=nvidia-h200
    python -m pipeline.results merge results-from-elsewhere/ write=true
    python -m pipeline.results merge source=../other/outputs output=outputs
    python -m pipeline.results prune kernel=softmax
    python -m pipeline.results prune kernel=all gpu=nvidia-h200 parts=[point,source] write=true

``best`` prints the best configuration of a kernel at a problem on a GPU, the row behind it, and its call in
Python. It reads the ledgers and the finals. If several measured problems fit, each has a line. At a problem
that was not measured it prints the configuration that ``kernel_pipeline.ops`` calls, the rule behind that,
and its times at the nearest problem. docs/comparing.md explains the output.

``merge`` and ``prune`` print the changes only, unless write=true is written.

``merge`` takes ledgers, finals, comparisons, held-out problems, profiles, counters, generated code, build
reports, environments, ceilings and the records of ad-hoc sweeps. If both clones have measured a point with
the same settings, the newer row is kept, and a line for each file has the differences. If no time shows which
row is newer, the row here stays. Merging twice changes nothing, and the same command completes a merge that
was killed. All files are read as data: each row has to be whole, of this version and with fitting digests,
and is written anew. Links, plots, listings and traces are left out. A CPU's results stay on its host.

``prune`` removes old rows, whose key differs in a part from today's: the kernel has no such point, the
provider has another source, the measuring code another version, or the machine another environment. It also
removes the lines of runs that no row names. No other command removes old rows.
"""

from __future__ import annotations

import sys

from kernel_pipeline.errors import UserError
from kernel_pipeline.toolchain.resources import BuildReport

from . import as_typed
from .command.options import ResultsConfig
from .command.run import run_stage, say, warn
from .command.words import positional
from .comparing import best
from .keys.identity import settings_beside
from .keys.old_rows import Today, prune_ledger, prune_runs
from .points import catalog
from .store import results
from .store.clone import Merge

ALL = "all"

MOST_WARNINGS = 20
"""The maximum number of printed sentences on skipped rows; the others are counted."""


def run(config: ResultsConfig) -> None:
    """Answer, merge or prune. Raises UserError if no action is named, and for dimensions that only ``best``
    takes."""
    command = as_typed("results")
    if config.action is None:
        raise UserError(f"write {command} best kernel=NAME, {command} merge FOLDER, or {command} prune.")
    if config.action == "best":
        if config.kernel is None:
            raise UserError(f"kernel is missing: write kernel=NAME with one of {', '.join(catalog.names())}.")
        best.answer(config)
    elif config.pin:
        names = ", ".join(config.pin)
        raise UserError(f"{names}: only {command} best takes dimensions of a kernel; leave this option out.")
    elif config.action == "merge":
        if config.gpu is not None:
            raise UserError("gpu: merge takes the results of all machines; leave this option out.")
        merge(config)
    else:
        prune(config)


def merge(config: ResultsConfig) -> None:
    """Print the rows and files that a merge would take; with write=true take them."""
    if config.source is None:
        raise UserError(
            f"source is missing: write {as_typed('results')} merge FOLDER with the results of another clone."
        )
    if not config.source.is_dir():
        raise UserError(f"source={config.source} is not a folder with results.")
    if config.source.resolve() == config.output.resolve():
        raise UserError(
            f"source={config.source} and output={config.output} are the same folder; name another "
            "clone's folder."
        )
    done = Merge(config.source, config.output, config.write, BuildReport, settings_beside)
    done.all()
    if not done.seen:
        inside = config.source / "results"
        hint = f"; write merge {inside}" if inside.is_dir() else ""
        raise UserError(f"source={config.source} holds no results of the pipeline{hint}.")
    for sentence in done.left_out[:MOST_WARNINGS]:
        say(sentence, style="yellow")
    if (more := len(done.left_out) - MOST_WARNINGS) > 0:
        say(f"{more} more were skipped.", style="yellow")
    for line in done.lines():
        say(line)
    if not done.rows and not done.documents:
        say(f"{config.output} already has all results of {config.source}.")
    elif config.write:
        say(f"{done.rows} rows and {done.documents} files taken.")
    else:
        say(f"{done.rows} rows and {done.documents} files would be taken. Write write=true to take them.")


def prune(config: ResultsConfig) -> None:
    """Count old rows, and remove them with write=true."""
    if not config.output.is_dir():
        raise UserError(f"output={config.output} is not a folder with results.")
    name = ALL if config.kernel is None else config.entry.name
    folders = results.folders_of(config.output)
    found = [path for folder in folders for path in sorted((folder / "timings").glob("*/*.jsonl"))]
    paths = [path for path in found if name in (ALL, path.parent.name) and config.gpu in (None, path.stem)]
    if not paths:
        wanted = f"kernel={config.kernel or ALL}" + (f" gpu={config.gpu}" if config.gpu else "")
        known = ", ".join(sorted({path.stem for path in found})) or "none"
        raise UserError(
            f"{' and '.join(map(str, folders))}: no ledger of {wanted} is there. The machines with ledgers: "
            f"{known}."
        )
    total = 0
    for path in paths:
        if config.kernel is None and path.parent.name not in catalog.names():
            say(
                f"{path} stays unchanged: no kernel here has its name. Write "
                f"kernel=FOLDER/{path.parent.name}."
            )
            continue
        where = config.kernel or path.parent.name
        today = Today(path, catalog.find(where).loaded)
        total += prune_ledger(today, config.parts, config.write, say, warn)
    if config.write:
        dropped = sum(prune_runs(folder, config.gpu) for folder in folders)
        say(f"Removed {total} rows, and the lines of {dropped} runs that no row names.")
    else:
        say(f"{total} rows are old. Write write=true to remove them." if total else "No row is old.")


if __name__ == "__main__":
    sys.argv[1:] = positional(sys.argv[1:], "action", "source")
    run_stage("results", ResultsConfig, run)
