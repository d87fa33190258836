"""The commands of docs/lectures/, and the outputs that the pages show."""

import re
import shlex
from dataclasses import dataclass

from pipeline import ROOT

PAGES = sorted((ROOT / "docs" / "lectures").glob("*.md"))

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)

NEEDS_A_GPU = "# needs a GPU\n"
"""The first line of a block whose command needs a GPU."""


@dataclass(frozen=True)
class Command:
    """A command block of a page: its environment variables, the words after ``python``, and the output
    that the page shows below it, "" if it shows none."""

    page: str
    needs_a_gpu: bool
    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:60]}"

    def is_shown_by(self, printed: str) -> bool:
        """Return whether an output matches the page's."""
        return is_shown(self.output, printed)


def is_shown(shown: str, printed: str) -> bool:
    """Return whether an output matches the text that a page shows. There an ellipsis (U+2026) matches any
    text, and white space matches any other white space."""
    pieces = [re.split(r"\s+", piece.strip()) for piece in shown.split("…")]
    pattern = ".*?".join(r"\s+".join(map(re.escape, piece)) for piece in pieces)
    return re.search(pattern, printed, re.DOTALL) is not None


def _parted(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def commands() -> list[Command]:
    """Return every block with a command, in the order of the pages."""
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
