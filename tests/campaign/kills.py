"""``kill -9`` at a random moment of every stage, and the same command again."""

import json
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.store.ledger import encode, read_rows
from tests.campaign.ground import LARGE, SMOKE, Done, Ground, missing
from tests.campaign.score import Score

OLD = "0" * 16
"""The source of rows that are to be pruned."""


@dataclass(frozen=True)
class Stage:
    """A command: how many of 100 kills are its, its words in a turn, what leaves it something to do, and what
    it left undone (None if nothing)."""

    command: str
    share: int
    words: Callable[[int], tuple[str, ...]]
    undone: Callable[[Ground, Done, int], str | None]
    prepare: Callable[[Ground], None] = lambda ground: None


def about(kernel: str, *words: str) -> tuple[str, ...]:
    """The words of a command about a kernel's points."""
    return (f"kernel={kernel}", *SMOKE, *words)


def swept(turn: int) -> tuple[str, ...]:
    """A new problem, into the repository's results and into a folder of its own in turn; every fifth time of
    the kernel with a compiler."""
    kernel = "quick" if turn % 5 else "tripled"
    output = "results" if turn % 2 else "outputs"
    return about(kernel, "tracking=none", f"size={turn}", f"output={output}")


def sweep_undone(ground: Ground, done: Done, turn: int) -> str | None:
    points = 2 if turn % 5 else 4
    if f"{points} of {points} are in" not in " ".join(done.out.split()):
        return f"not {points} of {points}: {done.told}"
    return None


def evidence_undone(stage: str, rows: int) -> Callable[[Ground, Done, int], str | None]:
    """Whether a file of evidence holds this turn's rows, and the artifacts that they name."""

    def undone(ground: Ground, done: Done, turn: int) -> str | None:
        (path,) = (ground.root / "local/results" / stage).glob("*/*.jsonl")
        found = [json.loads(line) for line in path.read_text().splitlines()]
        sizes = {next(iter(row["point"]["problem"].values())) for row in found if row["point"]}
        if len(found) != rows or sizes - {turn}:
            return f"{len(found)} rows of sizes {sizes}, not {rows} of {turn}"
        named = {row[name] for row in found for name in ("table", "trace", "artifact") if row.get(name)}
        there = {path.name for path in (ground.root / "artifacts" / stage).rglob("*")}
        gone = {Path(name).name for name in named} - there
        return f"artifacts are missing: {gone}" if gone else None

    return undone


def report_undone(ground: Ground, done: Done, turn: int) -> str | None:
    """The same results give the same bytes, wherever the report goes."""
    other = ground.folder / "reports"
    shutil.rmtree(other, ignore_errors=True)
    fault = ground.do("report", "device=cpu", f"output={other}").fault()
    mine, others = contents(ground.root / "local/reports"), contents(other)
    differ = sorted(name for name in mine | others if mine.get(name) != others.get(name))
    return fault or (f"pages differ: {differ}" if differ else None if mine else "no page")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def remove_reports(ground: Ground) -> None:
    shutil.rmtree(ground.root / "local/reports", ignore_errors=True)


RUNS = """
    SELECT runs.name, runs.status, experiments.name, parents.value FROM runs
    JOIN experiments ON experiments.experiment_id = runs.experiment_id
    LEFT JOIN tags AS parents ON parents.run_uuid = runs.run_uuid AND parents.key = 'mlflow.parentRunId'
    WHERE runs.lifecycle_stage = 'active'
"""


def runs(store: Path) -> list[tuple[str, str, str, str]]:
    """Name, status, experiment and parent of a store's runs."""
    with sqlite3.connect(store) as database:
        return database.execute(RUNS).fetchall()


def publish_undone(ground: Ground, done: Done, turn: int) -> str | None:
    store = ground.root / "mlflow.db"
    with sqlite3.connect(store) as database:
        ((state,),) = database.execute("PRAGMA integrity_check").fetchall()
    found = runs(store)
    twice = [run for run, count in Counter((name, of, up) for name, _, of, up in found).items() if count > 1]
    halves = [name for name, status, *_ in found if status != "FINISHED"]
    if state != "ok" or twice or halves or not found:
        return f"store {state}, {len(found)} runs, twice {twice[:3]}, unfinished {halves[:3]}"
    return None


def ceilings_undone(ground: Ground, done: Done, turn: int) -> str | None:
    (path,) = (ground.root / "local/results/ceilings").glob("*.json")
    return None if json.loads(path.read_text())["copy_gbps"] > 0 else "no copy rate"


def environment_undone(ground: Ground, done: Done, turn: int) -> str | None:
    found = [
        *(ground.root / "local/results/environment").glob("*.json"),
        ground.root / "build/environment.json",
    ]
    return None if len([path for path in found if json.loads(path.read_text())]) == 2 else "not two files"


def remove_environment(ground: Ground) -> None:
    shutil.rmtree(ground.root / "local/results/environment", ignore_errors=True)
    (ground.root / "build/environment.json").unlink(missing_ok=True)


def build_undone(ground: Ground, done: Done, turn: int) -> str | None:
    (report,) = (ground.root / "local/results/build/tripled").glob("*.json")
    library = ground.root / "build/kernels/tripled/cpp.so"
    whole = json.loads(report.read_text()) and library.exists() and library.stat().st_size
    return None if whole else "no library"


def remove_build(ground: Ground) -> None:
    shutil.rmtree(ground.root / "build/kernels/tripled", ignore_errors=True)
    shutil.rmtree(ground.root / "local/results/build", ignore_errors=True)


def plant_old(ground: Ground) -> None:
    """Rows of another source, after those that are there."""
    path = next((ground.root / "local/results/timings/quick").glob("*.jsonl"))
    made = []
    for row in read_rows(path, print)[-20:]:
        parts = row.parts.replace(source=OLD, settings=OLD)
        made.append(encode(row.replace(parts=parts, key=parts.key)))
    with path.open("ab") as file:
        file.write(b"".join(made))


def prune_undone(ground: Ground, done: Done, turn: int) -> str | None:
    path = next((ground.root / "local/results/timings/quick").glob("*.jsonl"))
    old = sum(row.parts.source == OLD for row in read_rows(path, print))
    return f"{old} old rows are left" if old else None


EVIDENCE = ("output=results", "artifacts=artifacts")
STAGES = (
    Stage("environment", 8, lambda turn: ("device=cpu",), environment_undone, remove_environment),
    Stage("benchmarks", 4, lambda turn: ("ceilings", "device=cpu", "output=results"), ceilings_undone),
    Stage("build", 5, lambda turn: ("kernel=tripled", "device=cpu"), build_undone, remove_build),
    Stage("sweep", 30, swept, sweep_undone),
    Stage(
        "profile", 9, lambda turn: about("quick", *EVIDENCE, f"size={turn}"), evidence_undone("profile", 2)
    ),
    Stage(
        "counters", 10, lambda turn: about("quick", *EVIDENCE, f"size={turn}"), evidence_undone("counters", 1)
    ),
    Stage(
        "codegen",
        6,
        lambda turn: about("tripled", *EVIDENCE, "provider=blocks", "block=64", f"size={turn}"),
        evidence_undone("codegen", 1),
    ),
    Stage("report", 10, lambda turn: ("device=cpu",), report_undone, remove_reports),
    Stage("publish", 10, lambda turn: (), publish_undone),
    Stage("results", 8, lambda turn: ("prune", "write=true"), prune_undone, plant_old),
)


def campaign(ground: Ground, dice: random.Random, kills: int) -> list[Score]:
    """Every stage once to its end, then the kills in an order of chance."""
    scores = {stage.command: Score(f"kill -9 of {stage.command}") for stage in STAGES}
    usual: dict[str, float] = {}
    for turn in (1, 2):  # both outputs of a sweep
        for stage in STAGES if turn == 1 else (stage for stage in STAGES if stage.command == "sweep"):
            stage.prepare(ground)
            done = ground.do(stage.command, *stage.words(turn))
            usual[stage.command] = done.seconds
            scores[stage.command].blame(done.fault() or stage.undone(ground, done, turn))
    scores["sweep"].blame(ground.do("sweep", "kernel=quick", *SMOKE, *LARGE).fault())
    own = {path.name for path in ground.temporary.iterdir()}
    commands = dice.choices(STAGES, [stage.share for stage in STAGES], k=kills)
    # All stages have their turn where there are enough kills.
    commands[: len(STAGES)] = STAGES[: len(commands)]
    dice.shuffle(commands)
    for turn, stage in enumerate(commands, start=3):
        score = scores[stage.command]
        stage.prepare(ground)
        usual[stage.command] = kill(ground, stage, turn, dice.uniform(0, usual[stage.command]), score)
    scores["publish"].blame(afresh(ground))
    # What compilers and Python's tempfile had there when they were killed, nobody else can know to be theirs.
    left = {path.name for path in ground.temporary.iterdir()} - own
    print(f"Killed commands left {len(left)} entries in TMPDIR, which is the system's to clear.", flush=True)
    return list(scores.values())


def kill(ground: Ground, stage: Stage, turn: int, after_s: float, score: Score) -> float:
    """Kill a command after so many seconds and run it again; how long the second run took."""
    score.tried += 1
    before = {path: keys - old_keys(Path(path)) for path, keys in ground.keys().items()}
    running = ground.begin(stage.command, *stage.words(turn))
    time.sleep(after_s)
    running.process.kill()
    killed = running.end()
    if killed.code != -signal.SIGKILL:
        score.blame(killed.fault())
    for left in ground.survivors():
        score.blame(f"outlived it, killed after {after_s:.2f} s: {left}")
    then = {path: keys - old_keys(Path(path)) for path, keys in ground.keys().items()}
    score.lose(missing(before, then), f"killed after {after_s:.2f} s")
    for path in ground.ledgers():
        score.blame(f"{path.name} has torn lines before its last" if set(ground.torn(path)) - {0} else None)
    for name in ground.unreadable():
        score.blame(f"{name} is a part, killed after {after_s:.2f} s")

    done = ground.do(stage.command, *stage.words(turn))
    score.blame(done.fault() or stage.undone(ground, done, turn))
    score.lose(missing(then, ground.keys()), "by the second run")
    for path in ground.ledgers(ground.root / "local/results", ground.root / "outputs"):
        if path.parent.name != "runs":
            score.blame(f"{path.name} is torn after the second run" if ground.torn(path) else None)
    for name in sorted(ground.temporaries()):
        score.blame(f"{name} is left, killed after {after_s:.2f} s")
        (ground.root / name).unlink()
    print(f"{turn - 2}: {stage.command} killed after {after_s:.2f} s", flush=True)
    return done.seconds


def old_keys(path: Path) -> set[str]:
    """The keys of the rows that are there to be pruned."""
    return {row.key for row in read_rows(path, lambda sentence: None) if row.parts.source == OLD}


def afresh(ground: Ground) -> str | None:
    """Whether the store that was killed so often holds what an empty one then gets."""
    uri = f"sqlite:///{ground.folder / 'afresh.db'}"
    for words in ((), (f"tracking.uri={uri}",)):
        if fault := ground.do("publish", *words).fault():
            return fault
    stores = (ground.root / "mlflow.db", ground.folder / "afresh.db")
    old, new = (Counter((name, of) for name, _, of, _ in runs(store)) for store in stores)
    return None if old == new else f"not what an empty store gets: {(old - new) or (new - old)}"
