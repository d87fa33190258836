"""Run compilers by ninja: in parallel, with a log for each source and a message for each failure."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ..errors import UserError
from ..machine.reaper import under_reaper
from ..records.credentials import masked

if TYPE_CHECKING:
    from ninja.ninja_syntax import Writer


class CompileError(UserError):
    """A source that does not compile or link; the text is the compiler's message."""


@dataclass(frozen=True)
class LibraryBuild:
    """The build of a library from one source. The compiler writes ``.o`` and ``.d``, the linker ``.so``. All
    files are beside ``library``, with the compiler's output in ``.log``."""

    source: Path
    library: Path
    compile: tuple[str, ...]
    link: tuple[str, ...]

    def file(self, suffix: str) -> Path:
        """Return the path beside the library with the given suffix."""
        return self.library.with_suffix(suffix)


def compile_all(
    jobs: Sequence[LibraryBuild], folder: Path, working_directory: Path
) -> dict[LibraryBuild, str]:
    """Build the libraries from scratch in ``folder``. Return the text of each job's dependency file.

    The files that stay in the folder (libraries, logs and the ninja file) are identical for identical sources
    and compilers. Raises CompileError with the compilers' messages for the sources that fail.
    """
    import ninja
    from ninja.ninja_syntax import Writer

    folder.mkdir(parents=True, exist_ok=True)
    # Delete all outputs: ninja compares file times, which mean nothing in a restored folder, and a file that
    # a cache shares with the folder by a hard link must not be overwritten.
    passing = (folder / ".ninja_log", *(job.file(suffix) for job in jobs for suffix in (".o", ".d")))
    ninja_file = folder / "build.ninja"
    kept = (ninja_file, *(job.file(suffix) for job in jobs for suffix in (".so", ".log", ".link.log")))
    for path in (*passing, *kept, *folder.glob("*.failed")):
        path.unlink(missing_ok=True)
    with ninja_file.open("w") as text:
        _write(Writer(text), jobs, folder)  # type: ignore[arg-type]  # its stub takes a str
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-k", "0", "-f", str(ninja_file)]
    code, said = _run(command, working_directory)
    for path in (*folder.glob("*.log"), *folder.glob("*.failed")):
        path.write_text(masked(path.read_text(errors="replace")))
    if code != 0:
        raise CompileError(_failures(jobs) or said)
    dependencies = {job: job.file(".d").read_text() for job in jobs}
    for path in passing:
        path.unlink()
    for job in jobs:
        lines = job.file(".log").read_text().splitlines(keepends=True)
        job.file(".log").write_text("".join(line for line in lines if "Compile time" not in line))
    return dependencies


_running: set[subprocess.Popen[str]] = set()
_stopped = Event()


def stop() -> None:
    """Stop all builds of this process, from a thread that does not build. Later builds stop at once."""
    _stopped.set()
    for process in list(_running):
        process.terminate()


def _run(command: Sequence[str], working_directory: Path) -> tuple[int, str]:
    """Run a command and return its exit status and output. No compiler outlives this process, or Ctrl-C."""
    with subprocess.Popen(
        under_reaper(command),
        cwd=working_directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        _running.add(process)
        if _stopped.is_set():
            process.terminate()
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()
            raise
        finally:
            _running.discard(process)
    return process.returncode, said


def _write(writer: Writer, jobs: Sequence[LibraryBuild], folder: Path) -> None:
    from ninja.ninja_syntax import escape

    writer.variable("builddir", escape(str(folder)))
    # A failed command leaves its log as .failed, which separates its message from the others.
    writer.rule("run", "$call > $log 2>&1 || { mv $log $failed; exit 1; }")
    for job in jobs:
        compile_ = _variables(job, job.compile, "") | {"depfile": escape(str(job.file(".d")))}
        writer.build([str(job.file(".o"))], "run", [str(job.source)], variables=compile_)
        link = _variables(job, job.link, ".link")
        writer.build([str(job.library)], "run", [str(job.file(".o"))], variables=link)


def _variables(job: LibraryBuild, call: tuple[str, ...], step: str) -> dict[str, str]:
    """Return the ninja variables of a step: its command and logs, quoted for the shell and then for ninja."""
    from ninja.ninja_syntax import escape

    return {
        "call": escape(shlex.join(call)),
        "log": escape(shlex.quote(str(job.file(f"{step}.log")))),
        "failed": escape(shlex.quote(str(job.file(f"{step}.failed")))),
    }


def _failures(jobs: Sequence[LibraryBuild]) -> str:
    """Return the compilers' messages for the sources that failed."""
    messages = []
    for job in jobs:
        for name, verb in (("", "compile"), (".link", "link")):
            log = job.file(f"{name}.failed")
            if log.is_file():
                lines = [line for line in log.read_text().splitlines() if not line.startswith("ptxas info")]
                messages.append("\n".join([f"{job.source} does not {verb}:", *lines]))
    return "\n".join(messages)
