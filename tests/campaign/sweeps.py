"""Two sweeps of one kernel at once, that share nothing but the folder."""

from __future__ import annotations

import random

from pipeline.machine import device
from pipeline.store.ledger import read_rows
from tests.campaign.ground import SMOKE, Ground, missing
from tests.campaign.score import Score
from tests.planted.tree import size

ROUNDS = 5
SIZES = 12
"""Problems of each sweep, a third of which are the other's too."""


def campaign(ground: Ground, dice: random.Random) -> list[Score]:
    """Rounds in one folder, each with problems of its own."""
    ground.know_ceilings(device.cpu())
    score = Score("two sweeps at once")
    output = ground.root / "outputs"
    for turn in range(ROUNDS):
        score.tried += 1
        before = ground.keys()
        problems = list(range(turn * 20 + 1, turn * 20 + 21))
        dice.shuffle(problems)
        both = []
        for number, sizes in enumerate((problems[:SIZES], problems[-SIZES:])):
            temporary = ground.folder / f"temporary{number}"
            temporary.mkdir(exist_ok=True)
            words = ("kernel=quick", *SMOKE, "timing.cache=hot", "tracking=none")
            asked = f"size=[{','.join(map(str, sizes))}]"
            both.append(ground.begin("sweep", *words, asked, "output=outputs", temporary=temporary))
        for running in both:
            score.blame(running.end().fault())
        after = ground.keys()
        score.lose(missing(before, after), f"in round {turn + 1}")
        rows = read_rows(ground.ledger("quick"), print)
        found = {(size(row.point), row.point.provider) for row in rows}
        lacking = {(n, provider) for n in problems for provider in ("mul", "blocks")} - found
        score.lose(len(lacking), f"measured in round {turn + 1} and not there")
        left = [path.name for path in output.rglob(".*") if not path.name.endswith(".lock")]
        score.blame(f"left behind: {left}" if left else None)
        print(f"round {turn + 1} of {ROUNDS}", flush=True)
    return [score]
