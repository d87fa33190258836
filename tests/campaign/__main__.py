"""The command line, and the table at the end."""

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.campaign import disk, kills
from tests.campaign.ground import Ground
from tests.campaign.score import Score, show

KILLS = 100
PARTS = ("kills", "disk")


def main(words: list[str]) -> int:
    """Run the parts; the exit code."""
    options = {"kills": str(KILLS), "parts": ",".join(PARTS), "seed": "0"}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in options:
            print(f"error: {word} is none of kills=NUMBER, parts=[{','.join(PARTS)}], seed=NUMBER.")
            return 2
        options[name] = value
    parts = options["parts"].strip("[]").split(",")
    if not (options["kills"].isdigit() and options["seed"].isdigit() and set(parts) <= set(PARTS)):
        print(f"error: write kills=NUMBER, seed=NUMBER, and of parts=[{','.join(PARTS)}] some.")
        return 2
    dice = random.Random(int(options["seed"]))
    begun = time.monotonic()
    scores: list[Score] = []
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        for name in parts:
            print(f"{name} …", flush=True)
            place = Path(folder) / name
            place.mkdir()
            ground = Ground(place)
            try:
                if name == "kills":
                    scores += kills.campaign(ground, dice, int(options["kills"]))
                else:
                    scores += disk.campaign(ground, dice)
            finally:
                ground.end_all()  # after Ctrl-C
    return 0 if show(scores, time.monotonic() - begun) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
