"""One command alone removes old rows, only by an option, and says which."""

import re
from pathlib import Path

import pytest

from kernel_pipeline import loading
from kernel_pipeline.records.base import Values, digest
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.settings import TimingSettings
from pipeline.keys import identity, versions
from pipeline.keys.old_rows import settings_digest
from pipeline.store import ledger, results
from pipeline.store.rows import encode
from tests import factory
from tests.project import python

ROOT = Path(__file__).parents[2]
LOADED = loading.load("softmax")
TIMING = TimingSettings(min_samples=9)
NOW = settings_digest(TIMING, 3)


def row(provider: str, size: int, **parts: str) -> Measurement:
    """Return a row with today's parts, except the given parts."""
    source = identity.source(LOADED, LOADED.kernel.provider(provider)).digest
    today = {"source": source, "measurement": versions.measurement("cuda", "auto"), "settings": NOW}
    environment = parts.pop("environment", None)
    made = factory.measurement("softmax", provider, size, **today | parts)  # type: ignore[arg-type]
    told = made.parts.replace(**{"environment": environment} if environment else {})
    return made.replace(parts=told, key=told.key)


def without_a_place(provider: str, problem: dict[str, int | str]) -> Measurement:
    """Return a row of a point that the kernel does not have."""
    made = row("torch", 64)
    point = made.point.replace(provider=provider, problem=Values(problem))
    told = made.parts.replace(point=digest(point.to_dict()))
    return made.replace(point=point, parts=told, key=told.key)


PROBLEM = dict(row("torch", 64).point.problem)
CURRENT = [
    row("torch", 256),
    row("triton_online", 256),
    row("torch", 257),  # a width of no preset
    row("torch", 256, settings="hot", measurement=versions.measurement("cuda", "event")),
    row("quack", 256, environment="0" * 16),  # the installed version is unknown
    row("numba", 256, environment="0" * 16),  # likewise
]
OLD = {
    "removed: 1 by point": without_a_place("removed", PROBLEM),
    "torch: 1 by point": without_a_place("torch", {**PROBLEM, "dtype": "float8"}),
    "torch: 1 by source": row("torch", 1024, source="0" * 16),
    "triton_row: 1 by source, measurement": row("triton_row", 1024, source="", measurement="0"),
    "triton_online: 1 by measurement": row("triton_online", 2048, measurement="edited 00"),
    "torch: 1 by environment": row("torch", 4096, environment="0" * 16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = factory.write_results(tmp_path / "results", [*CURRENT, *OLD.values()])
    told = {"timing": TIMING.to_dict(), "seed": 3}
    results.config_path(made, "softmax", factory.H200).write_text(str(told))
    foreign = made / "timings" / "elsewhere" / f"{factory.H200}.jsonl"
    foreign.parent.mkdir()
    factory.write_provenance(foreign, [row("torch", 256, source="0" * 16)])
    foreign.write_bytes(encode(row("torch", 256, source="0" * 16)))
    return made


def prune(folder: Path, *options: str) -> list[str]:
    """Run the command. Return its output lines."""
    done = python("-m", "pipeline.results", "prune", f"output={folder}", *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def keys(path: Path) -> set[str]:
    return {one.key for one in ledger.read_rows(path, print)}


@pytest.mark.slow
def test_old_rows_are_listed_with_reasons_and_removed_by_write(folder: Path) -> None:
    path = results.ledger_path(folder, "softmax", factory.H200)
    other = results.ledger_path(folder, "elsewhere", factory.H200)
    before, others = path.read_bytes(), other.read_bytes()
    said = prune(folder)
    assert f"{path}: {len(OLD)} of {len(OLD) + len(CURRENT)} rows are old" in said
    reasons = "\n".join(line.strip() for line in said if re.match(r"  \w", line))
    assert "removed: 1 row is old: softmax/removed no longer declares the point" in reasons
    assert "torch: 3 rows are old: " in reasons
    for reason in (
        "softmax/torch no longer declares the point (1 of them)",
        "the source of softmax/torch changed (1 of them)",
        "the environment changed, and the old one is not known (1 of them)",
        "triton_online: 1 row is old: measured by '",
        "triton_row: 1 row is old: the source of softmax/triton_row changed; measured by version 0 of",
    ):
        assert reason in reasons
    alone = "stays unchanged: no kernel here has its name. Write kernel=FOLDER/elsewhere."
    assert f"{other} {alone}" in said
    assert said[-1] == "6 rows are old. Write write=true to remove them."
    assert path.read_bytes() == before, "without write=true"

    said = prune(folder, "kernel=softmax", "parts=[point,environment]", "write=true")
    assert said[-1] == "Removed 3 rows, and the lines of 0 runs that no row names."
    kept = [one for reason, one in OLD.items() if not reason.endswith(("point", "environment"))]
    assert keys(path) == {one.key for one in [*CURRENT, *kept]}

    said = prune(folder, "write=true", "parts=[settings,source,measurement]")
    assert any("torch: 2 rows are old: " in line and "settings" in line for line in said)
    assert said[-1].startswith("Removed 4 rows, and the lines of ")
    assert keys(path) == {one.key for one in CURRENT if one.parts.settings == NOW}
    assert other.read_bytes() == others


def test_gpu_leaves_the_rows_and_runs_of_other_machines(folder: Path) -> None:
    old = [row("torch", 1024, source="0" * 16)]
    factory.write_results(folder, [one.replace(origin=one.origin.replace(gpu=factory.H100)) for one in old])
    others = [results.ledger_path(folder, "softmax", factory.H100), *folder.glob(f"*/{factory.H100}.jsonl")]
    before = [path.read_bytes() for path in others]
    said = prune(folder, f"gpu={factory.H200}", "parts=[source]", "write=true")
    assert said[-1].startswith("Removed 2 rows, ")
    assert [path.read_bytes() for path in others] == before and len(others) == 2
    done = python("-m", "pipeline.results", "prune", f"output={folder}", "gpu=h200")
    assert done.returncode == 2
    assert (
        f"no ledger of kernel=all gpu=h200 is there. The machines with ledgers: {factory.H100}" in done.stderr
    )
