"""Stage ``environment``: describe this machine.

    python -m pipeline.environment
    python -m pipeline.environment device=cpu
    python -m pipeline.environment device=cuda:1 output=outputs

Writes the fingerprint of this machine to two files. The later stages depend on ``build/environment.json``: a
change of machine runs them again, and a rebuilt image of a container does not. ``environment/<gpu>.json``
goes with the results and names the image too.

The fingerprint of a CPU identifies this checkout on this host, by a number that is drawn once. The number
lies in ``local/`` beside the CPU's results. If that folder is deleted, a new number is drawn and everything
is measured again.
"""

from __future__ import annotations

from rich.table import Table

from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.environment import UNKEYED

from . import ROOT
from .command.options import EnvironmentConfig
from .command.run import console, run_stage, say
from .reporting.numbers import print_wide
from .store import results


def run(config: EnvironmentConfig) -> None:
    """Read this machine's fingerprint, and write it to ``build/environment.json`` and to the results."""
    environment = fingerprint(device.resolve(config.device))
    output = results.folder_for(config.output, environment.kind)
    if config.output.resolve() == ROOT / "results":
        results.make_folders()
    for path, without in (
        (ROOT / results.CURRENT, UNKEYED),
        (results.environment_path(output, environment.gpu), set[str]()),
    ):
        write_atomically(path, environment.to_json(indent=2, exclude=without) + b"\n")
    table = Table(show_header=False, title=f"{environment.gpu} (environment {environment.digest})")
    for name, value in environment.to_dict().items():
        table.add_row(name, "–" if value is None else str(value))
    print_wide(console, table)
    say(f"{environment.gpu}, torch {environment.torch}: {results.CURRENT}.")


if __name__ == "__main__":
    run_stage("environment", EnvironmentConfig, run)
