"""Read the exercises, and make the file that a learner fills in."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline.errors import UserError, unknown

FOLDER = Path(__file__).parent

TOPICS = ("Triton", "Numba", "CUDA C++", "Measuring", "Reading profiles")
"""The topics in the order of the list."""

HOLE = re.compile(r"^( *)((?:#|//) YOURS\b.*)\n((?:.*\n)*?) *(?:#|//) END\n", re.MULTILINE)
"""The part to fill in. Its groups are the indentation, the comment, and the lines of the part."""

EMPTY = "..."
"""The line that stands for the missing part in a learner's file."""


@dataclass(frozen=True)
class Exercise:
    """One exercise. ``source`` is its whole file, ``title`` and ``prompt`` are its docstring."""

    name: str
    source: str
    title: str
    prompt: str
    topic: str
    step: int
    mistake: str
    hints: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Exercise:
        """Read an exercise's file without importing it."""
        source = path.read_text()
        tree = ast.parse(source)
        values: dict[str, object] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Tuple | ast.Name):
                names = [one.id for one in getattr(target, "elts", [target]) if isinstance(one, ast.Name)]
                if {"TOPIC", "MISTAKE", "HINTS"} & set(names):
                    value = ast.literal_eval(node.value)
                    values |= zip(names, value if len(names) > 1 else [value], strict=True)
        hints = values["HINTS"]
        assert isinstance(hints, tuple), f"{path} has a tuple of hints"
        title, _, prompt = (ast.get_docstring(tree) or "").partition("\n\n")
        return cls(
            name=path.stem,
            source=source,
            title=title,
            prompt=prompt,
            topic=str(values["TOPIC"]),
            step=int(str(values["STEP"])),
            mistake=str(values["MISTAKE"]),
            hints=hints,
        )

    @property
    def start(self) -> str:
        """The learner's file: without the solution and all that follows the cases."""
        return self.filled(EMPTY)

    @property
    def solution(self) -> str:
        """The lines of the part to fill in, without indentation."""
        return textwrap.dedent(self._hole[3])

    def filled(self, part: str) -> str:
        """Return the learner's file with these lines in the part."""
        hole = self._hole
        lines = textwrap.indent(textwrap.dedent(part).strip("\n"), hole[1])
        comment = hole[2].partition(" ")[0]
        text = (
            self.source[: hole.start()]
            + f"{hole[1]}{hole[2]}\n{lines}\n{hole[1]}{comment} END\n"
            + self.source[hole.end() :]
        )
        return text.partition("\nTOPIC, ")[0].rstrip() + "\n"

    @property
    def _hole(self) -> re.Match[str]:
        found = HOLE.search(self.source)
        assert found is not None, f"{self.name} has a part between YOURS and END"
        return found


def first_line(text: str) -> int:
    """Return the number of the line where the part to fill in begins, or 1 if its comments are gone."""
    found = HOLE.search(text)
    return 1 if found is None else text.count("\n", 0, found.start(3)) + 1


def is_empty(text: str) -> bool:
    """Return whether the part is still to be filled in."""
    found = HOLE.search(text)
    return found is not None and found[3].strip() in ("", EMPTY)


def exercises() -> list[Exercise]:
    """Return all exercises by topic and step."""
    found = [Exercise.read(path) for path in FOLDER.glob("[a-z]*.py")]
    return sorted(found, key=lambda one: (TOPICS.index(one.topic), one.step, one.name))


def find(name: str) -> Exercise:
    """Return an exercise. Raises UserError for an unknown name."""
    known = [one.name for one in exercises()]
    if name not in known:
        raise unknown("exercise", name, known)
    return Exercise.read(FOLDER / f"{name}.py")


def table() -> str:
    """Return the list of exercises as the Markdown tables of docs/exercises.md."""
    parts = []
    every = exercises()
    for topic in TOPICS:
        rows = [f"| `{one.name}` | {one.title} |" for one in every if one.topic == topic]
        parts.append("\n".join([f"## {topic}", "", "| name | exercise |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def hint(exercise: Exercise, number: int) -> str:
    """Return a hint, 1 for the first. Raises UserError for a number beyond the last."""
    last = len(exercise.hints)
    if not 1 <= number <= last:
        raise UserError(f"hint={number}: {exercise.name} has hints 1 to {last}.")
    after = f"hint={number + 1}" if number < last else "solution=true"
    return f"Hint {number} of {last}: {exercise.hints[number - 1]}\nNext: {after}"
