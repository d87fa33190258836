"""A command's kernels in processes of their own, several at a time, as one after the other would print."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import IO, TypeVar

from pipeline import UserError
from pipeline.machine.reaper import die_with

C = TypeVar("C")

FORK = get_context("fork")
"""What is imported is there in each, without a second of its own."""


class Forked:
    """One process that does something and keeps what it prints."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.told, theirs = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_child, args=(do, self.printed.fileno(), theirs, os.getpid()))
        sys.stdout.flush()
        sys.stderr.flush()
        self.process.start()
        theirs.close()

    def end(self) -> str | None:
        """Print what it has printed; why it could not be done, by its own words. Raises RuntimeError for one
        that came to no end of its own."""
        told = b""
        with suppress(EOFError):
            told = self.told.recv_bytes()
        self.process.join()
        self.printed.seek(0)
        sys.stdout.write(self.printed.read().decode(errors="replace"))
        sys.stdout.flush()
        self.close()
        if not told:
            raise RuntimeError(f"a process ended with {self.process.exitcode}; what it said is above")
        answer = json.loads(told)
        return None if answer is None else str(answer)

    def close(self) -> None:
        """End it, if it has not."""
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.told.close()
        self.printed.close()


def failures(
    configs: Sequence[C], do: Callable[[C], None], at_once: int
) -> Generator[tuple[C, str], None, None]:
    """Do something for each, so many at a time; those that could not be done, with why. What one prints
    stands together, in the order of all."""
    started: list[Forked] = []
    try:
        for place, config in enumerate(configs):
            while True:
                alive = [one for one in started if one.process.is_alive()]
                while len(alive) < at_once and len(started) < len(configs):
                    started.append(Forked(partial(do, configs[len(started)])))
                    alive.append(started[-1])
                if started[place] not in alive:
                    break
                wait([one.process.sentinel for one in alive])
            if why := started[place].end():
                yield config, why
    finally:
        for one in started:
            one.close()


def _child(do: Callable[[], None], printed: int, told: Connection, parent: int) -> None:
    die_with(parent)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the end
    try:
        do()
        answer = None
    except UserError as error:
        answer = str(error)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    told.send_bytes(json.dumps(answer).encode())
    told.close()
    os._exit(0)
