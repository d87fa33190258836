"""Processes that run one of our modules in a side's tree, several of them at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.fork_server import Root, placed
from kernel_pipeline.records.base import Record


def as_lines(records: Iterable[Record]) -> str:
    """Return records as lines of JSON, which processes read and write."""
    return b"".join(one.line() for one in records).decode()


class SideProcess:
    """A process that runs a module with the code and the packages of ``root``, and reads ``given``. It starts
    at once. A context manager, whose exit ends the process."""

    def __init__(self, root: Path | Root, module: str, *words: str, given: str = "") -> None:
        with ExitStack() as stack:
            # Files instead of pipes: a process never waits until this one reads or writes.
            read, self._out, self._err = (
                stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(3)
            )
            read.write(given)
            read.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                **placed(root, os.environ),
                stdin=read,
                stdout=self._out,
                stderr=self._err,
            )
            self._files = stack.pop_all()

    def output(self, unsaid: str) -> str:
        """Wait until the process ends. Returns its output. Raises UserError with the last line of its errors,
        or with ``unsaid``, if it failed."""
        done = self.result()
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or [unsaid]
            raise UserError(said[0].removeprefix("error: "))
        return done.stdout

    def result(self) -> subprocess.CompletedProcess[str]:
        """Wait until the process ends. Returns its exit code and its output."""
        code = self._process.wait()
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
        return subprocess.CompletedProcess(self._process.args, code, *texts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._files.close()
