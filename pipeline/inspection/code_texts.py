"""The texts of generated code: a file each, under a name of its own among the artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pipeline.inspection.code_scope import Scope
from pipeline.inspection.library import CudaLibrary
from pipeline.inspection.lines import Sources
from pipeline.inspection.listing import heading
from pipeline.points.frozen import digest
from pipeline.store.evidence import CodeRow
from pipeline.store.files import write_atomically

LONGEST_NAME = 150
"""Most characters of a text's name: file systems take 255 bytes, and a C++ template's name may be longer."""


class Texts:
    """The texts that belong to the rows which are asked for; what else lies in their folder is old."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._names: dict[str, str] = {}

    def keep(self, rows: Iterable[CodeRow]) -> None:
        """Keep the texts of rows that stayed."""
        for row in rows:
            self._names[_stem(row.artifact)] = ""

    def keep_named(self, name: str, identity: str) -> None:
        """Keep the text, of what ``identity`` tells from others, under a name that nothing else has."""
        self._names[name] = identity

    def free(self, name: str, identity: str) -> str:
        """The name for a text, told apart from that of other code that has it."""
        short = _short(name)
        if self._names.setdefault(short, identity) != identity:
            short = f"{short}-{identity[:8]}"
            self._names[short] = identity
        return short

    def write(
        self, row: CodeRow, name: str, texts: Mapping[str, str], parts: Mapping[str, Sequence[str]]
    ) -> CodeRow:
        """Write a function's texts and its listing; the row with the listing's place."""
        sources = Sources.of(self.scope.loaded)
        for kind, text in texts.items():
            write_atomically(self.scope.folder / f"{name}.{kind}", sources.portable(text).encode())
        lines = heading(row)
        for kind, part in parts.items():
            lines += ["", f"== {kind.upper()}", *part]
        path = self.path(name)
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        return row.model_copy(update={"artifact": self.below(path)})

    def path(self, name: str) -> Path:
        """Of the listing with that name."""
        return self.scope.folder / f"{name}.txt"

    def below(self, path: Path) -> str:
        """A text's place among the artifacts."""
        return str(path.relative_to(self.scope.artifacts))

    def remove_others(self) -> None:
        """Remove the texts that belong to none of the rows that were asked for."""
        for path in self.scope.folder.glob("*"):
            if path.is_file() and path.name.rpartition(".")[0] not in self._names:
                path.unlink()


def text_names(library: CudaLibrary, functions: Iterable[str], architecture: str) -> dict[str, str]:
    """The names of texts of the functions, which are named in C++: its words, and a digest of the whole name
    where several have the same words."""
    plain = {name: "-".join([library.stem, *_words(name), f"sm_{architecture}"]) for name in functions}
    several = {name for name in plain.values() if list(plain.values()).count(name) > 1}
    return {
        function: _short(f"{name}-{digest(function)[:8]}" if name in several else name)
        for function, name in plain.items()
    }


def _stem(artifact: str | None) -> str:
    return Path(artifact or "").name.rpartition(".")[0]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{digest(name)}"


def _words(name: str) -> list[str]:
    """The words of a C++ name."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in name).split()
