"""Count the calls of each problem, together with the choice for it.

With ``KERNELS_UNTUNED=file`` in the environment the problems that were not tuned are written to that file,
for ``python -m pipeline.sweep kernel=K workload=file``. The file is a JSON object with the problems of each
kernel under ``problems``.
"""

from __future__ import annotations

import atexit
import dataclasses
import fcntl
import json
import os
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .choice import Choice

MOST = 1 << 16
"""The maximum number of problems that a process counts; later problems are ignored."""

VARIABLE = "KERNELS_UNTUNED"


@dataclass(slots=True)
class Asked:
    """A problem of a kernel, the choice for it, and the number of calls. ``problem`` is None for calls that
    are not a problem of the kernel, for example because of their dtype; ``choice.reason`` says why."""

    kernel: str
    problem: Any
    choice: Choice
    calls: int = 0

    @property
    def dimensions(self) -> dict[str, Any]:
        """The problem's dimensions by name."""
        return {} if self.problem is None else dataclasses.asdict(self.problem)


_asked: dict[tuple[Any, ...], Asked] = {}
_lock = threading.Lock()
_written: set[tuple[Any, ...]] = set()


def counter(kernel: str, problem: Any, choice: Choice) -> Asked:
    """Return the counter of a problem's calls."""
    key = (kernel, problem if problem is not None else choice.reason, choice.how)
    with _lock:
        found = _asked.get(key) or Asked(kernel, problem, choice)
        if len(_asked) < MOST:
            _asked[key] = found
    return found


def untuned() -> list[Asked]:
    """Return the problems that were called but not tuned, the most frequent first."""
    found = [one for one in _asked.values() if one.choice.how != "exact"]
    return sorted(found, key=lambda one: -one.calls)


def forget() -> None:
    """Reset all counts."""
    with _lock:
        _asked.clear()


def write(path: Path) -> None:
    """Add the untuned problems to a file, each once; problems that other processes wrote stay. Raises OSError
    if the file can't be written, and ValueError if it holds something else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        try:
            held: dict[str, Any] = json.loads(text) if text.strip() else {}
            for one in untuned():
                if one.problem is not None:
                    problems = held.setdefault(one.kernel, {"problems": []})["problems"]
                    if one.dimensions not in problems:
                        problems.append(one.dimensions)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{path} is not a list of problems: name another file by {VARIABLE}.") from None
        file.seek(0)
        file.truncate()
        file.write(_text(held))


def _text(held: dict[str, Any]) -> str:
    """Return JSON with one line for each problem."""
    kernels = []
    for name, content in sorted(held.items()):
        lines = ",\n".join(f"    {json.dumps(problem)}" for problem in content["problems"])
        kernels.append(f'  {json.dumps(name)}: {{"problems": [\n{lines}\n  ]}}')
    return "{\n" + ",\n".join(kernels) + "\n}\n"


def _at_exit() -> None:
    if (name := os.environ.get(VARIABLE)) and any(one.problem is not None for one in untuned()):
        try:
            write(Path(name))
        except (OSError, ValueError) as error:
            warnings.warn(f"{VARIABLE}: {error}", stacklevel=1)


atexit.register(_at_exit)
