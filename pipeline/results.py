"""Take the results of another clone, or remove old rows; without write=true print the changes only.

    python -m pipeline.results merge results-from-elsewhere/ write=true
    python -m pipeline.results merge source=../other/outputs output=outputs
    python -m pipeline.results prune kernel=softmax
    python -m pipeline.results prune kernel=all parts=[point,source] write=true

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
from .keys.identity import settings_beside
from .keys.old_rows import Today, prune_ledger, prune_runs
from .points import catalog
from .store import results
from .store.clone import Merge

ALL = "all"

MOST_WARNINGS = 20
"""The maximum number of printed sentences on skipped rows; the others are counted."""


def run(config: ResultsConfig) -> None:
    """Merge or prune. Raises UserError if neither is named."""
    if config.action is None:
        raise UserError(f"write {as_typed('results')} merge FOLDER, or {as_typed('results')} prune.")
    if config.action == "merge":
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
    name = config.kernel if config.kernel == ALL else catalog.find(config.kernel).name
    folders = results.folders_of(config.output)
    found = [path for folder in folders for path in sorted((folder / "timings").glob("*/*.jsonl"))]
    paths = [path for path in found if name in (ALL, path.parent.name)]
    if not paths:
        raise UserError(f"{' and '.join(map(str, folders))}: no ledger of kernel={config.kernel} is there.")
    total = 0
    for path in paths:
        if config.kernel == ALL and path.parent.name not in catalog.names():
            say(
                f"{path} stays unchanged: no kernel here has its name. Write "
                f"kernel=FOLDER/{path.parent.name}."
            )
            continue
        where = path.parent.name if config.kernel == ALL else config.kernel
        today = Today(path, catalog.find(where).loaded)
        total += prune_ledger(today, config.parts, config.write, say, warn)
    if config.write:
        dropped = sum(prune_runs(folder) for folder in folders)
        say(f"Removed {total} rows, and the lines of {dropped} runs that no row names.")
    else:
        say(f"{total} rows are old. Write write=true to remove them." if total else "No row is old.")


if __name__ == "__main__":
    sys.argv[1:] = positional(sys.argv[1:], "action", "source")
    run_stage("results", ResultsConfig, run)
