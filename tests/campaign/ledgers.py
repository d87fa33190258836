"""Ledgers that somebody spoilt, by every kind of line in ``tests.hostile``."""

from __future__ import annotations

import io
import random
import re
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from pipeline import UserError, report
from pipeline.command.options import ReportConfig
from pipeline.machine import device
from pipeline.store import ledger, results
from tests import factory, hostile
from tests.campaign.ground import SMOKE, Done, Ground, missing
from tests.campaign.score import Score
from tests.mlflow_store import log

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
GENERATED = 15
"""Ledgers of edits by chance, beside those of each kind alone."""


def campaign(ground: Ground, dice: random.Random) -> list[Score]:
    """Some ledgers through real commands, each kind alone through what the commands call."""
    ground.know_ceilings(device.cpu())
    commands, calls = Score("hostile ledgers, commands"), Score("hostile ledgers, each alone")
    every = [*hostile.KNOWN.values(), *hostile.SHOWN.values()]
    garbage = [line for line in hostile.GARBAGE if line]
    for name, lines in (("edited lines", every), ("garbage", garbage), ("both", [*every, *garbage])):
        through_commands(ground, name, lines, commands)
        print(f"{name} through sweep, report and publish", flush=True)
    kinds = {**hostile.KNOWN, **hostile.SHOWN, **{repr(line[:20]): line for line in garbage}}
    place = ground.folder / "alone"
    for number, (name, line) in enumerate(kinds.items()):
        through_calls(place / str(number), name, [line], calls)
    print(f"{len(kinds)} kinds of lines, each alone", flush=True)

    drawn: list[list[bytes]] = []

    @seeded(dice.randrange(2**32))
    @settings(
        max_examples=GENERATED,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(some=hostile.lines())
    def draw(some: list[bytes]) -> None:
        drawn.append(some)

    draw()
    for number, some in enumerate(drawn):
        through_calls(place / f"drawn{number}", f"ledger {number} of chance", some, calls)
    print(f"{len(drawn)} ledgers of chance", flush=True)
    return [commands, calls]


def through_commands(ground: Ground, name: str, lines: list[bytes], score: Score) -> None:
    """A ledger of these lines and of some whole ones, swept into, reported and published."""
    folder = ground.root / "spoilt" / name.replace(" ", "_")
    here = device.cpu().slug
    sweep = ("kernel=quick", *SMOKE, "tracking=none", "size=[1,2]", f"output={folder}")
    score.blame(ground.do("sweep", *sweep).fault())
    factory.write_results(folder, factory.grid(sizes=(256,)))
    whole = ground.keys(folder)
    for path in (
        results.ledger_path(folder, "quick", here),
        results.ledger_path(folder, "softmax", factory.H200),
    ):
        hostile.write(path, [*path.read_bytes().splitlines(), *lines])
    before = files(ground.root)
    for command, words in (
        ("sweep", sweep),
        ("report", (f"input={folder}", f"output={folder}-reports", "device=cpu")),
        (
            "publish",
            (
                f"input={folder}",
                "runs=null",
                f"reports={folder}-reports",
                f"tracking.uri=sqlite:///{folder}.db",
            ),
        ),
    ):
        score.tried += 1
        done = ground.do(command, *words)
        score.blame(ended(done) and f"{name}, {command}: {ended(done)}")
        score.blame(
            f"{name}, {command}: a control character" if CONTROL.search(done.out + done.err) else None
        )
        score.lose(missing(whole, ground.keys(folder)), f"{name}, by {command}")
    own = (str(folder), str(ground.root / "mlartifacts"), str(folder.parent / "mlartifacts"))
    strange = {path for path in files(ground.root) - before if not path.startswith(own)}
    score.blame(f"{name}: written elsewhere: {sorted(strange)[:3]}" if strange else None)


def ended(done: Done) -> str | None:
    """Why an end is neither a good one nor a sentence, or None."""
    return done.fault() and done.silence()


def files(folder: Path) -> set[str]:
    """All files there, but Python's own."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def through_calls(place: Path, name: str, lines: list[bytes], score: Score) -> None:
    """A ledger of these lines and of some whole ones through what the commands call."""
    folder = factory.write_results(place / "results", factory.grid(sizes=(256,)))
    path = results.ledger_path(folder, "softmax", factory.H200)
    whole = {row.key for row in ledger.read_rows(path, lambda sentence: None)}
    hostile.write(path, [*path.read_bytes().splitlines(), *lines])
    reports, store = place / "reports", place / "mlflow.db"
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("report", lambda: report.run(ReportConfig(input=folder, output=reports, device="cpu"))),
        ("publish", lambda: log(folder, f"sqlite:///{store}", reports=reports)),
        ("sweep", lambda: ledger.Ledger(path, print).compact()),
    )
    before = files(place)
    for command, call in calls:
        score.tried += 1
        said = io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                call()
        except UserError as error:
            said.write(str(error))
        except Exception:
            score.blame(f"{name}, {command}: {traceback.format_exc().strip().splitlines()[-1][:200]}")
        if CONTROL.search(said.getvalue()):
            score.blame(f"{name}, {command}: a control character")
    kept = {row.key for row in ledger.read_rows(path, lambda sentence: None)}
    score.lose(len(whole - kept), f"{name}, by compaction")
    own = (str(reports), str(store), str(place / "mlartifacts"), str(path.with_name(f".{path.name}.lock")))
    strange = {path for path in files(place) - before if not path.startswith(own)}
    score.blame(f"{name}: written elsewhere: {sorted(strange)[:3]}" if strange else None)
