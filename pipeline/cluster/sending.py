"""Commands that run as a whole on one device of each model of a cluster: all rounds of a comparison belong on
one. What they measure comes back as it is written, and what they say as it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import ROOT, UserError
from pipeline.cluster.crew import MOST_REVIVED
from pipeline.cluster.engine import Engine, LostError, Remote
from pipeline.cluster.errand import LINES
from pipeline.cluster.gathering import Member, Say
from pipeline.cluster.messages import Described, Errand, News
from pipeline.cluster.sweeping import ClusterRequest, at_once, models_of
from pipeline.store import files, provenance, results

NEWS_S = 1.0
"""How long a station waits for news of its errand before it says that there are none."""

MISTAKE = 2
"""The exit code of a command whose last line says what is wrong."""

ERROR = "error: "

OF_MACHINE = ("ceilings", provenance.FOLDER)

PARTS = ("timings", "finals", "comparisons", *OF_MACHINE)
"""What of an output folder goes along, of the command's kernels and the device's model; what is of a machine
is of every kernel."""


@dataclass(frozen=True)
class Sent:
    """A command for a cluster. ``commits`` are what it needs beside the working tree's own, and ``output`` is
    the folder that what it writes comes to."""

    errand: Errand
    wanted: ClusterRequest
    commits: Sequence[str]
    output: Path


def send(name: Engine, sent: Sent, say: Callable[[str], None], warn: Say) -> int:
    """Run a command on one device of each model, on all models at once. Returns the greatest exit code.

    Of several models each line that is said begins with whose it is. Raises UserError as ``models_of`` does,
    for a mistake that the command finds, and for a model whose devices were lost.
    """
    with models_of(name, sent.wanted, warn, sent.commits) as models:
        several = len(models) > 1

        def said(model: str) -> Callable[[str], None]:
            return lambda line: say(f"{model}: {line}" if several else line)

        there = [_There(sent, models[model], said(model), warn) for model in sorted(models)]
        return max(at_once(there, _There.run))


class _There:
    """The command on one model's devices, of which the first that is not lost has it."""

    def __init__(self, sent: Sent, members: Sequence[Member], say: Callable[[str], None], warn: Say) -> None:
        self._sent = sent
        self._members = members
        self._say = say
        self._warn = warn
        self._stopped = False
        self._remote: Remote | None = None
        self._model = members[0].described.environment.gpu
        kind = members[0].described.environment.kind
        self._output = results.folder_for(sent.output, kind)
        self._known = results.folder_for(ROOT / "results", kind)
        for one in members[1:]:
            one.remote.end()  # somebody else's, unless the first is lost

    def run(self) -> int:
        """The exit code. Raises UserError as ``send`` does, and KeyboardInterrupt when it was stopped."""
        for member, remote in self._places():
            self._remote = remote
            try:
                return self._followed(remote)
            except LostError:
                if self._stopped:
                    raise KeyboardInterrupt from None
                remote.end()
                where = f"{member.device} on {member.node.name}"
                self._warn(f"{where} was lost; the command goes on from there on another device.")
        raise UserError(f"every device of {self._model} was lost; the same command goes on from here.")

    def stop(self) -> None:
        """End the command."""
        self._stopped = True
        if self._remote is not None:
            self._remote.end()

    def _places(self) -> Iterator[tuple[Member, Remote]]:
        """Where the command may run: the first device, then the others, then those that were lost again."""
        yield self._members[0], self._members[0].remote
        again = [*self._members[1:], *self._members]
        for member in again[: len(self._members) + MOST_REVIVED - 1]:
            if self._stopped:
                raise KeyboardInterrupt
            try:
                remote = member.again()
                described = Described.model_validate_json(remote.ask("describe"))
            except (LostError, UserError):
                continue
            if described.environment == member.described.environment:
                yield member, remote
            else:
                remote.end()

    def _followed(self, remote: Remote) -> int:
        remote.ask("start", self._sent.errand.model_dump_json(), self._files())
        last = ""
        while True:
            told, grown, whole = remote.ask("news", NEWS_S)
            self._write(grown, whole)
            news = News.model_validate_json(told)
            for line in news.lines:
                if last:
                    self._say(last)
                last = line
            if news.code is None:
                continue
            if news.code == MISTAKE:
                raise UserError(last.removeprefix(ERROR))
            if last:
                self._say(last)
            return news.code

    def _files(self) -> dict[str, bytes]:
        """What the command would find in its output folder, and the ceilings that the repository knows."""
        kernels = {entry.name for entry in self._sent.wanted.entries}
        found: dict[str, bytes] = {}
        known = results.ceilings_path(self._known, self._model)
        if known.is_file():
            found[str(known.relative_to(self._known))] = files.content(known)
        for part in PARTS:
            for path in sorted((self._output / part).rglob("*")):
                words = path.relative_to(self._output).parts[1:]
                is_of = part in OF_MACHINE or words[0] in kernels
                if is_of and self._model in (path.stem, *words[:-1]) and path.is_file():
                    found[str(path.relative_to(self._output))] = files.content(path)
        return found

    def _write(self, grown: dict[str, bytes], whole: dict[str, bytes]) -> None:
        # A run's line comes before the rows that name the run.
        both = grown | whole
        for name in sorted(both, key=lambda one: not one.startswith(f"{provenance.FOLDER}/")):
            content = both[name]
            path = self._output / name
            if not results.inside(self._output, path):
                raise UserError(f"{path} is a link that leads out of {self._output}; remove it.")
            if path.suffix == LINES:
                path.parent.mkdir(parents=True, exist_ok=True)
                files.append(path, content)
            else:
                files.write_atomically(path, content)


def options_of(options: dict[str, Any], output: Path, kind: str) -> dict[str, Any]:
    """A command's options for the host that runs it: its own device, no cluster, no tracker, and an output
    folder in the copy of the sources, of the same name where that can be."""
    is_within = not output.is_absolute() and ".." not in output.parts and kind == "cuda"
    told = {"cluster": None, "output": str(output) if is_within else "outputs"}
    return options | told
