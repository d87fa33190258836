"""Exercises that check themselves, without a GPU, within seconds.

    python -m docs.exercises                              lists them
    python -m docs.exercises softmax_online               writes your file; again: checks it
    python -m docs.exercises softmax_online hint=1        the first hint, then the next
    python -m docs.exercises softmax_online solution=true

A file lies in outputs/exercises/. Delete it to begin anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.machine.device import gpus
from kernel_pipeline.machine.reaper import INTERPRETERS
from pipeline import ROOT
from pipeline.command.errors import fail

from . import _catalog
from ._catalog import Exercise

FILES = Path("outputs/exercises")
"""The folder of the learner's files, in the working folder."""

LONGEST_S = 60
"""The time limit of a check in seconds, which ends an endless loop."""


def main() -> None:
    """Run the command line."""
    try:
        words = sys.argv[1:]
        if {"-h", "--help"} & set(words):
            print((__doc__ or "").strip())
        elif not words:
            listed()
        else:
            sys.exit(exercise(words[0], words[1:]))
    except UserError as error:
        fail(str(error))


def listed() -> None:
    """Print all exercises by topic. A star marks those that have a file."""
    topic = ""
    for one in _catalog.exercises():
        if one.topic != topic:
            topic = one.topic
            print(f"\n{topic}")
        print(f"  {'*' if _file(one).exists() else ' '} {one.name:20} {one.title}")
    print("\nStart one: python -m docs.exercises NAME")


def exercise(name: str, words: list[str]) -> int:
    """Write or check a file, or print a hint or the solution. Returns the exit code: 1 for a wrong answer."""
    one = _catalog.find(name)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    for word in (*options.keys(), *(word for word in words if "=" not in word)):
        if word not in ("hint", "solution"):
            raise unknown("option", word, ("hint", "solution"))
    if "hint" in options:
        if not options["hint"].isdecimal():
            raise UserError(f"hint: write a number, as in hint=1, not '{options['hint']}'.")
        print(_catalog.hint(one, int(options["hint"])))
        return 0
    if "solution" in options:
        if options["solution"] != "true":
            raise UserError("solution: write solution=true.")
        print(one.solution.rstrip())
        return 0
    if not _file(one).exists():
        written(one)
        return 0
    return checked(one)


def _file(one: Exercise) -> Path:
    return FILES / f"{one.name}.py"


def written(one: Exercise) -> None:
    """Write the learner's file. Print what to do."""
    _file(one).parent.mkdir(parents=True, exist_ok=True)
    _file(one).write_text(one.start)
    line = _catalog.first_line(one.start)
    print(f"{one.title}\n\n{one.prompt}\n\nYour part: {_file(one)}, line {line}.")
    print(f"Check it: python -m docs.exercises {one.name}. A hint: hint=1.")


def checked(one: Exercise) -> int:
    """Check the learner's file. Print what is wrong, or the kernel's loads and stores."""
    file = _file(one)
    text = file.read_text()
    if _catalog.is_empty(text):
        line = _catalog.first_line(text)
        raise UserError(f"{file}, line {line}: your part is still empty. A hint: hint=1.")
    plain = {name: value for name, value in os.environ.items() if name not in INTERPRETERS}
    code = _run("check", one, plain if gpus() else plain | INTERPRETERS)
    return code or _run("count", one, plain | {"CUDA_VISIBLE_DEVICES": ""})


def _run(what: str, one: Exercise, environment: dict[str, str]) -> int:
    """Run ``_checking`` in a process of its own, so that a wrong address or an endless loop ends only that
    process."""
    path = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}._checking", what, one.name, str(_file(one).resolve())],
            env=environment | {"PYTHONPATH": path},
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{_file(one)} ran for {LONGEST_S} s and was ended: does a loop never end?") from None
    if done.returncode < 0:
        raise UserError(
            f"{_file(one)} ended by signal {-done.returncode}: it probably used memory outside of a tensor."
        )
    return done.returncode


if __name__ == "__main__":
    if not sys.argv[1:]:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` ends the list without a traceback
    main()
