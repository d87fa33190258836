"""Two models of GPU on one cluster, by the command's own code over planted stations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline import sweep
from pipeline.cluster import sweeping
from pipeline.cluster.team import ClusterTeam
from pipeline.execution import identity
from pipeline.store import results
from pipeline.store.ceilings import Rates
from pipeline.store.ledger import read_rows
from tests import factory
from tests.pipeline.cluster.planted import Planted, described, member
from tests.pipeline.test_config import parsed

OPTIONS = ["cluster=ray", "preset=smoke", "provider=torch", "rows=4", "columns=[8,16,32]", "dtype=float32"]


class Rated(Planted):
    """A station whose device has limits, and which has nothing to build."""

    def rates(self) -> str:
        rates = Rates(copy_gbps=4000.0, matmul_tflops={"float32": 50.0})
        return json.dumps({"rates": rates.model_dump(), "is_disturbed": False})


@pytest.fixture
def stations(monkeypatch: pytest.MonkeyPatch) -> list[Rated]:
    """Two of an H200, one of an H100."""
    models = [factory.environment(gpu) for gpu in (factory.H100, factory.H200, factory.H200)]
    made = [Rated(described(one)) for one in models]

    @contextmanager
    def teams_of(*asked: Any) -> Iterator[list[ClusterTeam]]:
        members = [member(number, one) for number, one in enumerate(made, start=1)]
        yield [ClusterTeam(members[:1], None, print), ClusterTeam(members[1:], None, print)]

    monkeypatch.setattr(sweeping, "teams_of", teams_of)
    return made


def test_every_model_measures_all_points_into_a_ledger_of_its_own(
    stations: list[Rated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = parsed([*OPTIONS, f"output={tmp_path}", "tracking=none"], monkeypatch)
    sweep.run([config])
    for gpu, at in ((factory.H100, {"node1/cuda:0"}), (factory.H200, {"node2/cuda:0", "node3/cuda:0"})):
        rows = read_rows(results.ledger_path(tmp_path, "softmax", gpu), pytest.fail)
        assert sorted(row.point.problem["columns"] for row in rows) == [8, 16, 32]
        assert {row.origin.gpu for row in rows} == {gpu}
        assert {row.origin.device for row in rows} <= at
        assert results.environment_path(tmp_path, gpu).is_file()
    assert "2 models: 6 points measured" in capsys.readouterr().out
    before = [len(one.measured) for one in stations]
    sweep.run([config])
    assert [len(one.measured) for one in stations] == before, "all of it is known"


def test_a_sweep_says_once_why_its_rows_name_no_commit(
    stations: list[Rated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(identity.commit, "unreadable", lambda root: "git is not installed")
    config = parsed([*OPTIONS, f"output={tmp_path}", "tracking=none"], monkeypatch)
    sentence = "Rows don't say which commit they are of: git is not installed."
    sweep.run([config])
    assert capsys.readouterr().out.count(sentence) == 1, "two models measured"
    sweep.run([config])
    assert sentence not in capsys.readouterr().out, "there are no new rows"


def test_a_model_that_is_lost_leaves_the_other_to_its_end(
    stations: list[Rated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stations[0].survives = lambda point: False
    config = parsed([*OPTIONS, f"output={tmp_path}", "tracking=none"], monkeypatch)
    with pytest.raises(sweep.UserError, match="every device of the cluster was lost, and 3 points are left"):
        sweep.run([config])
    ledger = results.ledger_path(tmp_path, "softmax", factory.H200)
    assert len(ledger.read_text().splitlines()) == 3


def test_one_process_and_a_cluster_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed([*OPTIONS, "debug=true", "tracking=none"], monkeypatch)
    with pytest.raises(sweep.UserError, match="leave cluster= out"):
        sweep.run([config])


def test_a_clusters_preset_is_that_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this host has."""
    assert parsed(["cluster=ray"], monkeypatch).preset.name == "quick"
    assert parsed(["cluster=ray", "device=cpu"], monkeypatch).preset.name == "cpu"
