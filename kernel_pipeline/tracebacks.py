"""Locate an exception in a kernel's own files: the file and line that its author looks for first."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import loading


def described(error: BaseException, folders: Sequence[Path]) -> str:
    """Describe an exception. The text begins with file, line and source line if one of its frames is in one
    of the folders: ``kernels/gelu/triton.py:41: `x / 0`: ZeroDivisionError: division by zero``."""
    place = _origin(error, folders)
    text = named(error)
    if place is None:
        return text
    file, line = place
    lines = file.read_text(errors="replace").splitlines()[line - 1 : line]
    source = "".join(f" `{line.strip()}`:" for line in lines)
    return f"{shown(file)}:{line}:{source} {text}"


def said_of(function: Callable[..., Any], text: str) -> str:
    """Return a clause about a function, with the place of its definition: ``kernels/gelu/reference.py:24:
    `reference` gives 2 outputs``."""
    inner = inspect.unwrap(function)
    name, code = getattr(inner, "__name__", repr(inner)), getattr(inner, "__code__", None)
    if code is None:
        return f"`{name}` {text}"
    return f"{shown(Path(code.co_filename))}:{code.co_firstlineno}: `{name}` {text}"


def shown(file: Path) -> Path:
    """Return a file's path as messages show it: relative to the repository's root if the file is in the
    repository."""
    root = loading.ROOT.parent
    return file.relative_to(root) if file.is_relative_to(root) else file


def named(error: BaseException) -> str:
    """Return an exception's type and text: ``ZeroDivisionError: division by zero``; the type alone if there
    is no text. The text of an error of Triton's compiler is its reason, without the source that it quotes."""
    kind, text = type(error).__name__, _compilers_reason(error) or str(error)
    return f"{kind}: {text}" if text else kind


def _compilers_reason(error: BaseException) -> str | None:
    """Return the innermost reason of an error of Triton's compiler: an error in a function that the kernel
    calls is the cause of one without a reason. None for other errors."""
    if not hasattr(error, "error_message"):
        return None
    reasons = [getattr(one, "error_message", None) for one in _causes(error)]
    return next((str(reason) for reason in reversed(reasons) if reason), None)


def _origin(error: BaseException, folders: Sequence[Path]) -> tuple[Path, int] | None:
    """Return the place that an author looks for first. If a library raises ``from`` another exception, as
    Triton's interpreter does, its own traceback shows only the call of the library: the cause has the
    kernel's line."""
    place = next((found for one in _causes(error) if (found := _place(one, folders))), None)
    one: BaseException = error
    while one.__cause__ is not None and not _raised_in(one, folders):
        one = one.__cause__
        place = _place(one, folders) or place
    return place


def _raised_in(error: BaseException, folders: Sequence[Path]) -> bool:
    """Whether the innermost frame of an exception is in a folder."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_in(Path(frames[-1].filename), folders)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _place(error: BaseException, folders: Sequence[Path]) -> tuple[Path, int] | None:
    """Return the file and line of an exception's innermost frame that is in a folder; None without such a
    frame."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        file = Path(error.filename)
        return (file, error.lineno) if _is_in(file, folders) else None
    if compiled := _in_compiled(error, folders):
        return compiled
    frames = traceback.extract_tb(error.__traceback__)
    places = [(Path(frame.filename), frame.lineno) for frame in frames if frame.lineno]
    return next((place for place in reversed(places) if _is_in(place[0], folders)), None)


def _in_compiled(error: BaseException, folders: Sequence[Path]) -> tuple[Path, int] | None:
    """Return the place of a compiler's error that names a function's source and a line in it, as Triton's
    does."""
    source, line = getattr(error, "src", None), getattr(getattr(error, "node", None), "lineno", None)
    if not isinstance(source, str) or not source.strip() or not isinstance(line, int):
        return None
    for file in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        before, found, _ = file.read_text(errors="replace").partition(source.strip())
        if found:
            return file, before.count("\n") + line
    return None


def _is_in(file: Path, folders: Sequence[Path]) -> bool:
    return any(file.is_relative_to(folder) for folder in folders)
