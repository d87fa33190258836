"""A command that runs as a whole on one device of a model: by stations that answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline import UserError
from pipeline.cluster import sending
from pipeline.cluster.engine import LostError
from pipeline.cluster.errand import RunningErrand
from pipeline.cluster.gathering import Member
from pipeline.cluster.messages import Errand, News
from pipeline.cluster.sending import Sent, options_of, send
from pipeline.cluster.sweeping import ClusterRequest
from pipeline.command.options import FinalsConfig, PresetConfig
from pipeline.machine import device
from pipeline.points import catalog
from pipeline.store import results
from pipeline.timing.settings import TimingSettings
from tests import factory
from tests.pipeline.cluster.planted import Planted, described, member

ERRAND = Errand(name="finals", words=("kernel=softmax",), options={"output": "outputs"}, columns=80)

Told = tuple[list[str], int | None, dict[str, bytes], dict[str, bytes]]
"""What a station has to say: lines, the exit code, what files grew by, and whole files."""


class Errands(Planted):
    """A station that has news; None in their place is its loss."""

    def __init__(self, *news: Told | None, gpu: str = factory.H200) -> None:
        super().__init__(described(factory.environment(gpu)))
        self.left = list(news)
        self.files: dict[str, bytes] | None = None

    def start(self, errand: str, files: dict[str, bytes]) -> None:
        assert Errand.model_validate_json(errand) == ERRAND
        self.files = files

    def news(self, seconds: float) -> tuple[str, dict[str, bytes], dict[str, bytes]]:
        told = self.left.pop(0)
        if told is None:
            raise LostError("its host is gone")
        lines, code, grown, whole = told
        return News(lines=tuple(lines), code=code).model_dump_json(), grown, whole


def done(*lines: str, code: int = 0) -> Told:
    return list(lines), code, {}, {}


class Sending:
    """What came of a command that was sent."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *models: Sequence[Member]) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []
        self.folder = folder

        @contextmanager
        def models_of(*asked: Any) -> Iterator[dict[str, Sequence[Member]]]:
            yield {some[0].described.environment.gpu: some for some in models}

        monkeypatch.setattr(sending, "models_of", models_of)

    def run(self) -> int:
        entries = [catalog.find("softmax")]
        wanted = ClusterRequest(entries, ("auto",), TimingSettings(), 0, 1.0, None)
        sent = Sent(ERRAND, wanted, (), self.folder)
        return send("ray", sent, self.said.append, self.warned.append)


Made = Callable[..., Sending]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(sending, "ROOT", tmp_path / "repository")
    return lambda *models: Sending(tmp_path, monkeypatch, *models)


def test_what_it_says_and_writes_comes_back_as_it_comes(made: Made, tmp_path: Path) -> None:
    rounds, ceilings = f"finals/softmax/rounds/{factory.H200}.jsonl", f"ceilings/{factory.H200}.json"
    (tmp_path / rounds).parent.mkdir(parents=True)
    (tmp_path / rounds).write_bytes(b"1\n")
    for other in ("finals/gelu/nvidia-h200.jsonl", f"timings/softmax/{factory.H100}.jsonl"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_bytes(b"other\n")
    station = Errands(
        (["round 1"], None, {rounds: b"2\n"}, {}),
        ([], None, {}, {ceilings: b"{}\n"}),
        (["round 2", "the table"], 0, {rounds: b"3\n4\n"}, {}),
    )
    sent = made([member(1, station)])
    assert sent.run() == 0
    assert station.files == {rounds: b"1\n"}, "of this kernel and this model"
    assert (tmp_path / rounds).read_bytes() == b"1\n2\n3\n4\n"
    assert (tmp_path / ceilings).read_bytes() == b"{}\n"
    assert (sent.said, sent.warned) == (["round 1", "round 2", "the table"], [])


def test_it_knows_the_ceilings_that_the_repository_does(made: Made, tmp_path: Path) -> None:
    path = results.ceilings_path(tmp_path / "repository" / "results", factory.H200)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"known")
    station = Errands(done())
    assert made([member(1, station)]).run() == 0
    assert station.files == {f"ceilings/{factory.H200}.json": b"known"}


def test_every_model_runs_it_and_says_whose_words_they_are(made: Made) -> None:
    one, other = Errands(done("faster")), Errands(done("slower", code=1), gpu=factory.H100)
    spare = Errands(done("never"))
    sent = made([member(1, one), member(2, spare)], [member(3, other)])
    assert sent.run() == 1
    assert sorted(sent.said) == [f"{factory.H100}: slower", f"{factory.H200}: faster"]
    assert spare.is_ended and spare.files is None, "one device is enough"


def test_a_mistake_is_the_commands_own_sentence(made: Made) -> None:
    sent = made([member(1, Errands((["a line"], None, {}, {}), done("error: no ledger has times.", code=2)))])
    with pytest.raises(UserError, match=r"^no ledger has times\.$"):
        sent.run()
    assert sent.said == ["a line"]


def test_where_a_device_is_lost_another_of_its_model_goes_on_from_there(made: Made, tmp_path: Path) -> None:
    rounds = f"finals/softmax/rounds/{factory.H200}.jsonl"
    first, again = Errands(([], None, {rounds: b"1\n"}, {}), None), Errands(done("the table"))
    sent = made([member(1, first), member(2, Errands(), lambda: again)])
    assert sent.run() == 0
    assert again.files == {rounds: b"1\n"}
    lost = "node1/cuda:0 on host1 was lost; the command goes on from there on another device."
    assert sent.warned == [lost]
    assert sent.said == ["the table"]


def test_when_all_are_lost_the_command_says_so(made: Made) -> None:
    sent = made([member(1, Errands(None), lambda: Errands(None))])
    with pytest.raises(UserError, match="every device of nvidia-h200 was lost; the same command goes on"):
        sent.run()


def test_an_output_folder_is_one_in_the_copy() -> None:
    options = {"output": "x", "cluster": "ray", "seed": 1}
    for folder, kind, there in (("results", "cuda", "results"), ("/data", "cuda", "outputs")):
        told = options_of(options, Path(folder), kind)
        assert told == {"output": there, "cluster": None, "seed": 1}
    assert options_of(options, Path("results"), "cpu")["output"] == "outputs", "a CPU's go elsewhere"
    assert options_of(options, Path("../x"), "cuda")["output"] == "outputs"


@pytest.mark.slow
def test_it_runs_in_a_copy_with_the_options_that_were_checked() -> None:
    """Without a ledger there is nobody: the command's own sentence, and its exit code."""
    config = FinalsConfig(
        kernel=("square",),
        workload=None,
        preset=PresetConfig(name="smoke"),
        timing=TimingSettings(),
        device="cpu",
        cluster="ray",
        margin=0.01,
        remeasure=False,
        rounds=None,
        most_rounds=None,
        output=Path("x"),
        seed=0,
        point_timeout_s=60.0,
        wait_s=None,
    )
    options = options_of(config.model_dump(mode="json"), config.output, "cpu")
    errand = Errand(name="finals", words=("kernel=square",), options=options, columns=80)
    running = RunningErrand(errand, device.cpu(), "drawn\n", {})
    said, code = [], None
    while code is None:
        news = News.model_validate_json(running.news(5.0)[0])
        said += news.lines
        code = news.code
    assert code == 2
    assert "no ledger in outputs has times to go by" in said[-1]
