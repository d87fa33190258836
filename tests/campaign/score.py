"""What a part of the campaign tried, and what came of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

SHOWN = 12
"""Sentences that are printed below the table; the others are counted."""


@dataclass
class Score:
    """One line of the table. ``lost`` counts rows, ``wrong`` all else that should not be."""

    part: str
    tried: int = 0
    lost: int = 0
    wrong: int = 0
    sentences: list[str] = field(default_factory=list)

    def lose(self, rows: int, sentence: str) -> None:
        """Rows that were there are not."""
        if rows:
            self.lost += rows
            self.sentences.append(f"{self.part}: {rows} rows lost: {sentence}")

    def blame(self, sentence: str | None) -> None:
        """Something is wrong, unless the sentence is None."""
        if sentence:
            self.wrong += 1
            self.sentences.append(f"{self.part}: {sentence}")


def show(scores: Iterable[Score], seconds: float) -> bool:
    """Print the table; whether nothing was lost and nothing wrong."""
    found = list(scores)
    console = Console(width=110, soft_wrap=True, highlight=False, markup=False)
    table = Table("part")
    for name in ("tried", "lost", "wrong"):
        table.add_column(name, justify="right")
    for score in found:
        table.add_row(score.part, str(score.tried), str(score.lost), str(score.wrong))
    table.add_section()
    totals = [sum(getattr(score, name) for score in found) for name in ("tried", "lost", "wrong")]
    table.add_row("all", *map(str, totals))
    console.print(table)
    sentences = [sentence for score in found for sentence in score.sentences]
    for sentence in sentences[:SHOWN]:
        console.print(sentence)
    if len(sentences) > SHOWN:
        console.print(f"and {len(sentences) - SHOWN} more like these.")
    console.print(f"It took {seconds / 60:.1f} min.")
    return totals[1:] == [0, 0]
