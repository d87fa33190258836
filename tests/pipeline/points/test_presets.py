"""What the presets promise of each other, by the ledgers that the repository keeps."""

from collections import defaultdict

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.records.base import Values
from pipeline import ROOT
from pipeline.points import catalog
from pipeline.points.plan import Target, plan
from pipeline.store import results
from pipeline.store.finals import written_by
from pipeline.store.rows_that_count import own_rows

H100 = Gpu(capability=(9, 0), multiprocessors=132, shared_memory=232448, l2_cache=50 << 20)
SLUG = "nvidia-h100-80gb-hbm3"

NEAR = 1.03
"""The best of preset ``quick`` is within 3 % of the best of all that was measured at its problems."""


MEASURED = [name for name in loading.names() if results.ledger_path(ROOT / "results", name, SLUG).is_file()]
"""attention_with_lse was written when that GPU was there no more."""


@pytest.mark.parametrize("name", MEASURED)
def test_the_best_of_quick_is_near_the_best(name: str) -> None:
    entry = catalog.find(name)
    quick = {(p.provider, p.problem, p.parameters) for p in plan(entry, "quick", Target("cuda", H100)).points}
    own = {one.name for one in entry.loaded.kernel.providers if written_by(one) == "own"}
    every: dict[Values, list[float]] = defaultdict(list)
    of_quick: dict[Values, list[float]] = defaultdict(list)
    rows = own_rows(results.ledger_path(ROOT / "results", name, SLUG), pytest.fail)
    newest = {row.point.problem: row for row in sorted(rows, key=lambda row: row.origin.measured_at)}
    for row in rows:
        point = row.point
        if point.provider not in own or row.outcome.timing is None:
            continue
        if row.parts.measurement != newest[point.problem].parts.measurement:
            continue  # times of two versions of the measuring code are not compared
        every[point.problem].append(row.outcome.timing.median_us)
        if (point.provider, point.problem, point.parameters) in quick:
            of_quick[point.problem].append(row.outcome.timing.median_us)
    assert of_quick, "quick was measured there"
    far = {str(dict(at)): min(some) / min(every[at]) for at, some in of_quick.items()}
    assert {at: ratio for at, ratio in far.items() if ratio > NEAR} == {}
    missing = {str(dict(problem)) for _, problem, _ in quick} - set(far)
    assert not missing, f"no time of quick's at {missing}"
