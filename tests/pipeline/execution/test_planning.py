"""Planning, keys and a sweep with nothing to measure import no torch, and so start at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import python

HEAVY = ("torch", "triton", "mlflow", "matplotlib")

KNOWN = f"""
import atexit, runpy, sys
from pathlib import Path
from pipeline.execution.identity import Identity
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from pipeline.store import provenance, results
from pipeline.store.files import write_atomically
from pipeline.store.ledger import encode
from pipeline.store.record import Measurement, Origin, Outcome
from pipeline.timing.settings import TimingSettings

def light():
    heavy = [name for name in {HEAVY!r} if name in sys.modules]
    assert not heavy, heavy
    print("light")

output = Path(sys.argv[1])
cpu = device.cpu()
entry = catalog.find("softmax")
found = plan(entry, "smoke", Target("cpu"))
settings = TimingSettings(min_samples=5, max_seconds=0.05)
identity = Identity(entry.loaded, fingerprint(cpu), settings, 0)
then = "2026-01-01T00:00:00Z"
origin = Origin(
    gpu=cpu.slug, device="cpu", run="r", command="c", commit="c", dirty=False, measured_at=then
)
rows = [
    Measurement(
        key=identity.key(point),
        point=point,
        workload=found.workloads[point],
        outcome=Outcome(status="compile_error", error="planted"),
        rate=None,
        parts=identity.parts(point),
        origin=origin,
    )
    for point in found.points
]
light()
path = results.ledger_path(output, "softmax", cpu.slug)
write_atomically(path, b"".join(map(encode, rows)))
provenance.cover(path, ((row.origin, row.parts, row.point.kernel) for row in rows))
sys.argv = [
    "pipeline.sweep",
    *("kernel=softmax", "preset=smoke", "device=cpu", "tracking=none", "seed=0", "allow=all"),
    f"output={{output}}",
]
atexit.register(light)
runpy.run_module("pipeline.sweep", run_name="__main__")
"""


@pytest.mark.slow
def test_a_sweep_that_knows_every_point_says_so_without_torch(tmp_path: Path) -> None:
    done = python("-c", KNOWN, str(tmp_path / "results"), TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Nothing to measure: " in done.stdout
    assert done.stdout.count("light\n") == 2
