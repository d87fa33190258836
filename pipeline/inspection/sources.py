"""Map the source lines of compilers' line tables to a kernel's own files or files of installed packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.loading import Loaded

INSTALLED = re.compile(r"^.*?(?:site-packages|dist-packages|include)/")
"""Matches the part of a path before the package that installed the file."""


@dataclass(frozen=True)
class SourceLine:
    """A source line in a compiler's line table."""

    file: str
    number: int


@dataclass(frozen=True)
class Sources:
    """Distinguishes a kernel's own files from others. Own files are below ``kernels/`` or
    ``kernel_pipeline/``, in any place of the repository when they were compiled, or in the folder of an
    ``outside`` kernel or a copy of it."""

    outside: Path | None = None

    @classmethod
    def for_kernel(cls, loaded: Loaded) -> Sources:
        """Return the sources of a kernel."""
        return cls(loaded.folder if loaded.is_outside else None)

    def below(self, path: str) -> str | None:
        """Return the path of an own file, beginning with ``kernels/``, ``kernel_pipeline/`` or the name of
        the outside kernel's folder. Returns None for any other file."""
        return _below(path, self.outside)

    def own(self, chain: Iterable[SourceLine]) -> SourceLine | None:
        """Return the innermost line in an own file, else the outermost line. ``chain`` has the lines through
        which an instruction was inlined, innermost first."""
        lines = list(chain)
        return next((line for line in lines if self.below(line.file)), lines[-1] if lines else None)

    def relative(self, path: str) -> str:
        """Return a file's path relative to the repository, the kernel's parent folder, or site-packages."""
        return self.below(path) or INSTALLED.sub("", path)

    def portable(self, text: str) -> str:
        """Remove the folders of this machine from a compiler's text."""
        return re.sub(r"(?<![\w.])/[^\s\"']+/[^\s\"']+", lambda match: self.relative(match[0]), text)

    def place(self, line: SourceLine) -> str:
        """Return ``file:line`` without the folders of this machine."""
        return f"{self.relative(line.file)}:{line.number}"

    def text(self, line: SourceLine) -> str:
        """Return the text of a line, or an empty string if the file is missing."""
        content = _content(self._path(line.file))
        return content[line.number - 1].strip() if 0 < line.number <= len(content) else ""

    def _path(self, file: str) -> Path:
        below = self.below(file)
        if below is None:
            return Path(file)
        if self.outside is not None and below.startswith(f"{self.outside.name}/"):
            return self.outside.parent / below
        return loading.ROOT.parent / below


REPOSITORY = Sources()
"""The sources of any kernel in this repository."""


@cache
def _below(path: str, outside: Path | None) -> str | None:
    for folder in (outside, loading.ROOT, loading.LIBRARY):
        if folder is None:
            continue
        if path.startswith((f"{folder}/", f"{folder.name}/")):
            return f"{folder.name}/{path.removeprefix(f'{folder}/').removeprefix(f'{folder.name}/')}"
    if outside is not None:
        # Triton's cache identifies a kernel by its text, so a cached line table may name another copy of the
        # file.
        if path.endswith(f"/{outside.name}"):  # LLVM IR names a file's folder
            return outside.name
        _, _, rest = path.rpartition(f"/{outside.name}/")
        if rest and (outside / rest).is_file():
            return f"{outside.name}/{rest}"
    match = re.search(r"^(?:.*/)?((?:kernels|kernel_pipeline)/(?:[\w.-]+/)*[\w.-]+)$", path)
    return match[1] if match and not INSTALLED_PACKAGE.search(path) else None


INSTALLED_PACKAGE = re.compile(r"/(?:site|dist)-packages/")
"""Matches the path of a file that a package installed."""


@cache
def _content(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
