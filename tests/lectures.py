"""The commands of docs/lectures/ and what the pages say that they print."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from pipeline import ROOT

PAGES = sorted((ROOT / "docs" / "lectures").glob("*.md"))

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

NEEDS_A_GPU = "# needs a GPU\n"
"""How a block begins whose command can't run without one."""


@dataclass(frozen=True)
class Command:
    """A block of a page: the environment variables and the words after ``python``, and the output that is
    shown below it, "" for none."""

    page: str
    needs_a_gpu: bool
    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:60]}"

    def is_shown_by(self, printed: str) -> bool:
        """Whether an output is the page's."""
        return is_shown(self.output, printed)


def is_shown(shown: str, printed: str) -> bool:
    """Whether an output is what a page shows: ``…`` is any text there, and any white space is alike."""
    pieces = [re.split(r"\s+", piece.strip()) for piece in shown.split("…")]
    pattern = ".*?".join(r"\s+".join(map(re.escape, piece)) for piece in pieces)
    return re.search(pattern, printed, re.DOTALL) is not None


def _parted(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def commands() -> list[Command]:
    """Every block with a command, in the pages' order."""
    found = []
    for page in PAGES:
        blocks = [match.groups() for match in BLOCK.finditer(page.read_text())]
        for number, (language, text) in enumerate(blocks):
            if language != "sh":
                continue
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            start = words.index("python")
            following = blocks[number + 1] if number + 1 < len(blocks) else ("sh", "")
            found.append(
                Command(
                    page=page.stem,
                    needs_a_gpu=text.startswith(NEEDS_A_GPU),
                    variables=tuple((name, value) for name, _, value in map(_parted, words[:start])),
                    words=tuple(word for word in words[start + 1 :] if word != "2>&1"),
                    output=following[1] if following[0] == "" else "",
                )
            )
    return found
