"""Write golden outputs of the results in git: ``python tests/freeze.py OUT [PART ...]``.

Run it in the root of a checkout. Equal trees write equal files, so ``diff -r`` of two output folders shows
how a change affects the report, the tuned tables, the MLflow runs, the plans with their keys, and the
help.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path.cwd()
sys.path.insert(0, str(ROOT))

GPUS = ("nvidia-h100-80gb-hbm3", "nvidia-h200")
"""The GPUs whose results are in git."""

CPU: dict[str, Any] = {
    "gpu": "cpu-frozen",
    "name": "frozen",
    "kind": "cpu",
    "compute_capability": None,
    "driver": None,
    "cuda": None,
}
CPU |= {"torch": "2.13.0+cpu", "cpu": "frozen", "cpu_threads": 2, "host": "frozen", "l2_bytes": None}
"""The fields in which a CPU's environment differs from a GPU's, with the same values on every host."""

TIMED = ("mlflow.parentRunId", "mlflow.user")
"""Tags that hold identifiers or depend on the host."""


def command(name: str, *words: str) -> str:
    """Return the output of one of this checkout's commands. Raises CalledProcessError if it fails."""
    left = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    return subprocess.run(
        [sys.executable, "-m", f"pipeline.{name}", *words],
        cwd=ROOT,
        env=left | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def report(out: Path, scratch: Path) -> None:
    """Write the report's pages, plots, metrics and data."""
    command("report", "device=cpu", f"output={out}")


def tune(out: Path, scratch: Path) -> None:
    """Write each GPU's tuned table, made from a copy of the results, and the command's output."""
    copy = scratch / "results"
    shutil.copytree(ROOT / "results", copy)
    shutil.rmtree(copy / "tuned", ignore_errors=True)
    for gpu in GPUS:
        said = command("tune", f"output={copy}", f"gpu={gpu}")
        said = re.sub(r"[\d.]+ s: ", "", said).replace(str(copy), "results")
        (out / f"{gpu}.txt").write_text(said)
    if (copy / "tuned").is_dir():
        shutil.copytree(copy / "tuned", out / "tuned")


def mlflow(out: Path, scratch: Path) -> None:
    """Write the MLflow runs, one file per experiment and one line per run, without identifiers and times."""
    database, pages = scratch / "mlflow.db", scratch / "reports"
    command("report", "device=cpu", f"output={pages}")
    command(
        "publish", "runs=null", "artifacts=null", f"reports={pages}", f"tracking.uri=sqlite:///{database}"
    )
    with sqlite3.connect(database) as store:
        experiments = store.execute("select experiment_id, name from experiments order by name").fetchall()
        for identifier, name in experiments:
            tags = store.execute(
                "select key, value from experiment_tags where experiment_id = ? order by key", [identifier]
            )
            views = re.sub(r'"(createdAt|updatedAt)":\d+', r'"\1":0', json.dumps(dict(tags), indent=1))
            lines = sorted(json.dumps(run, sort_keys=True) for run in runs_of(store, identifier))
            (out / f"{name}.tags.json").write_text(views.replace(str(scratch), "") + "\n")
            (out / f"{name}.jsonl").write_text(
                "".join(f"{line}\n" for line in lines).replace(str(scratch), "")
            )


def runs_of(store: sqlite3.Connection, experiment: str) -> Iterator[dict[str, Any]]:
    """Yield the runs of an experiment with their tags, parameters, metrics and artifact names."""
    found = store.execute(
        "select run_uuid, name, status, artifact_uri from runs where experiment_id = ?", [experiment]
    ).fetchall()
    names = {identifier: name for identifier, name, _, _ in found}
    for identifier, name, status, artifacts in found:
        tags = dict(store.execute("select key, value from tags where run_uuid = ?", [identifier]))
        place = Path(artifacts)
        yield {
            "name": name,
            "status": status,
            "parent": names.get(tags.get("mlflow.parentRunId", "")),
            "tags": {key: value for key, value in tags.items() if key not in TIMED},
            "params": dict(store.execute("select key, value from params where run_uuid = ?", [identifier])),
            "metrics": sorted(
                store.execute(
                    "select key, step, value from metrics where run_uuid = ?", [identifier]
                ).fetchall()
            ),
            "artifacts": sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()),
        }


def plans(out: Path, scratch: Path) -> None:
    """Write the points of every kernel and preset and the parts of their keys, on both GPUs and a made-up
    CPU."""
    from kernel_pipeline import loading
    from kernel_pipeline.contract import Gpu
    from kernel_pipeline.records.environment import Environment
    from kernel_pipeline.records.settings import TimingSettings
    from pipeline.keys.identity import Identity
    from pipeline.points import catalog
    from pipeline.points.plan import Target, plan

    recorded = [json.loads((ROOT / f"results/environment/{gpu}.json").read_text()) for gpu in GPUS]
    for fields in [*recorded, recorded[0] | CPU]:
        environment = Environment.from_dict(fields)
        gpu = Gpu((9, 0), 132, 232448, fields["l2_bytes"]) if fields["kind"] == "cuda" else None
        for kernel in loading.names():
            entry = catalog.find(kernel)
            identity = Identity(entry.loaded, environment, TimingSettings(), 0)
            lines = []
            for preset in sorted(path.stem for path in (ROOT / "conf/preset").glob("*.yaml")):
                if preset == "auto":
                    continue
                planned = plan(entry, preset, Target(fields["kind"], gpu))
                for point, workload in planned.workloads.items():
                    parts = identity.parts(point)
                    lines.append(f"{preset} {workload}: {point} {parts.to_json().decode()} {parts.key}")
                lines += [f"{preset}: {why}" for why in planned.refusals()]
            (out / f"{fields['gpu']} {kernel}.txt").write_text("".join(f"{line}\n" for line in lines))


def helps(out: Path, scratch: Path) -> None:
    """Write the help of each command, and of a sweep of each kernel."""
    from kernel_pipeline import loading

    for path in sorted((ROOT / "pipeline").glob("[a-z]*.py")):
        (out / f"{path.stem}.txt").write_text(command(path.stem, "--help"))
    for kernel in loading.names():
        (out / f"sweep {kernel}.txt").write_text(command("sweep", f"kernel={kernel}", "--help"))


PARTS: dict[str, Callable[[Path, Path], None]] = {
    "help": helps,
    "plans": plans,
    "tune": tune,
    "report": report,
    "mlflow": mlflow,
}


def main() -> None:
    """Write the named parts, or all parts."""
    os.environ["TRITON_INTERPRET"] = "1"
    whole = Path(sys.argv[1]).resolve()
    for name in sys.argv[2:] or PARTS:
        out = whole / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            PARTS[name](out, Path(scratch))


if __name__ == "__main__":
    main()
