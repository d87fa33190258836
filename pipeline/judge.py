"""Judge kernels that other people or language models wrote: are they right, and how fast are they?

    python -m pipeline.judge kernel=path/to/problem.py submission=path/to/solution.py
    python -m pipeline.judge kernel=problem.py submission=first.py,second.py scale=0.125
    python -m pipeline.judge kernel=problem.py submission=solution.py device=cpu format=json
    python -m pipeline.judge kernel=problem.py submission=solution.py reward=true
    python -m pipeline.judge kernel=problem.py
    python -m pipeline.judge kernel=path/to/task submission=path/to/solution.py
    python -m pipeline.judge kernel=definitions/gemm.json submission=solution.json
    python -m pipeline.judge board solutions/ kernel=problem.py

The problem is a file in KernelBench's format with `Model`, `get_inputs` and `get_init_inputs`, and a
submission is a file with `ModelNew`. Or the problem is the folder of a KernelBot task with `task.yml`, and a
submission is a file with `custom_kernel`. Or the problem is a definition in flashinfer-bench's format, and a
submission is a solution; then traces are written beside the verdicts. No file is edited. All elements of the
outputs are compared with float64 arithmetic, for inputs of several distributions, and for a few sizes that
the problem does not give. Correct submissions are then timed in rounds beside the problem's own code, eager
and compiled by torch.compile, and their times are audited. Prints a verdict on each submission, and writes
them as JSON and as a page. Exits with 0 if all are correct, with 1 if a submission is incorrect or cheats,
and otherwise with 3: a submission can't be judged.

`board` ranks the submissions in a folder on one page, beside those to other problems and on other GPUs. The
verdict on a submission is kept until the submission, the problem or the machine changes, so an interrupted
board continues where it ended. It exits with 0.

`reward=true` prints one number for each submission instead: the lower bound of its speed-up over the
problem's own code, at most 10, or 0 if it is not correct or has no time.

Where Linux allows it, a submission runs without network, can write no file of yours, and has limits of memory
and processes. Otherwise the verdict says "not isolated", with the reason.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.judging import folder
from kernel_pipeline.judging.flashinferbench import BUILD, FlashInferProblem
from kernel_pipeline.judging.formats import Problem, SubmissionFile
from kernel_pipeline.machine import confinement, device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.statistics.verdicts import FEWEST_ROUNDS, Rule
from kernel_pipeline.toolchain import inductor

from . import ROOT
from .command.errors import fail, unknown_option
from .command.options import JudgeConfig
from .command.run import console, run_stage, say, warn
from .command.words import alone, positional
from .execution.session import Session
from .inspection.memcheck import Memcheck
from .reporting import judged_page
from .store import commit, results
from .verdicts import board, formats
from .verdicts.board import Board, BoardEntry
from .verdicts.judged import NOT_RUN, Judged, Judgement
from .verdicts.rounds import RoundLimits
from .verdicts.trace import traces
from .verdicts.trial import Trial


def run(config: JudgeConfig) -> None:
    """Judge the submissions of a command line or of a board."""
    if config.most_rounds < config.rounds:
        raise UserError("most_rounds is less than rounds: write a larger most_rounds=N, or fewer rounds.")
    if 0 < config.rounds < FEWEST_ROUNDS:
        raise UserError(f"write rounds={FEWEST_ROUNDS} or more, or rounds=0 for verdicts without times.")
    if config.action == "board":
        Judge(config).board()
    else:
        Judge(config).submissions()


class Judge:
    """One run of the command."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self.problem = formats.problem(Path(config.kernel), config.workloads, config.most_workloads)
        try:
            pins = {size_of(name): size for name, size in config.pin.items()}
            self.plan = self.problem.plan(pins, config.scale)
        except UserError as error:
            raise unknown_option(JudgeConfig, config.pin) or error from error
        if not config.other_sizes:
            self.plan = replace(self.plan, resized=(), fixed={})
        if config.best is not None:
            self.problem.submission(config.best)
        chosen = device.resolve(config.device)
        output = results.folder_for(config.output, chosen.kind)
        name = re.sub(r"[^\w.+-]+", "-", self.problem.name, flags=re.ASCII) or "problem"
        self.place = output / "judge" / name
        results.asked_for(self.place / "verdict.json")
        self.session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, output)
        self.is_quiet = config.reward or config.format == "json"
        self.tell = complain if self.is_quiet else say

    def submissions(self) -> NoReturn:
        """Print and write the verdicts, and exit with their exit code."""
        files = self.beside_best(self.config.submission)
        submissions, wrong = named(self.problem, files)
        ran: dict[str, Any] = {"isolation": NOT_RUN, "mode": None, "skipped": {}}
        judged: tuple[Judged, ...] = ()
        if submissions:
            trial, judged = self.judged(submissions)
            ran = {"isolation": trial.isolation, "mode": trial.mode, "skipped": trial.skipped}
        order = [str(one) for one in files or ()]
        results = sorted((*judged, *wrong), key=lambda one: order.index(one.submission) if order else 0)
        found = Judgement(
            problem=str(self.problem.path),
            workloads=self.plan.all,
            scale=self.config.scale,
            gpu=self.session.device.slug,
            command=commit.command_line("judge"),
            at=datetime.now(UTC),
            results=tuple(results),
            **ran,
        )
        path = self.place / "verdict.json"
        write_atomically(path, found.to_json(indent=2) + b"\n")
        write_atomically(path.with_suffix(".html"), judged_page.of_judgement(found).encode())
        if isinstance(self.problem, FlashInferProblem):
            made = traces(self.problem, submissions, found.replace(results=judged), self.session.device)
            write_atomically(self.place / "traces.jsonl", made)
        if self.config.reward:
            rewards(results[: len(self.config.submission or results)])
        if self.config.format == "json" and not self.config.reward:
            sys.stdout.write(path.read_text())
        else:
            self.show(found, path)
        sys.exit(found.exit_code)

    def show(self, found: Judgement, path: Path) -> None:
        """Print the verdicts as sentences."""
        for one in found.results:
            self.tell(one.sentence())
        for line in found.left_out:
            self.tell(line)
        self.tell(
            f"Submissions were {found.isolation}. The verdicts: {path}, {path.with_suffix('.html').name}"
        )

    def board(self) -> None:
        """Judge the submissions of a folder that have no verdict yet, and write the page of all boards."""
        config = self.config
        if config.submission is None or len(config.submission) != 1 or not config.submission[0].is_dir():
            raise UserError("write the folder with the submissions: judge board FOLDER kernel=PROBLEM.")
        paths, wrong = board.submissions(config.submission[0], self.problem)
        limits = [config.rounds, config.most_rounds, config.margin, config.torch_compile, config.memory_gb]
        options = [*limits, config.other_sizes, config.best and config.best.read_text()]
        own = Board(self.place / board.FILE, self.problem, self.plan, self.session, options)
        keys = {str(path): own.key(path) for path in paths}
        known = own.known(warn)
        fresh = tuple(path for path in paths if keys[str(path)] not in known)
        # A verdict is of a file's content, which another file may have had when it was kept.
        entries = [
            known[key].replace(judged=known[key].judged.replace(submission=path))
            for path, key in keys.items()
            if key in known
        ]
        entries += [own.entry("", one, NOT_RUN) for one in wrong]
        self.tell(f"{len(fresh)} of {len(paths) + len(wrong)} submissions are judged now.")
        if fresh:

            def entry(one: Judged, isolation: str) -> BoardEntry:
                return own.entry(keys[one.submission], one, isolation)

            def settle(one: Judged, isolation: str) -> None:
                if Path(one.submission) in fresh:
                    own.keep(entry(one, isolation))

            trial, judged = self.judged(named(self.problem, self.beside_best(fresh))[0], settle)
            entries += [entry(one, trial.isolation) for one in judged if Path(one.submission) in fresh]
        others = [one for path in self.place.parent.glob(f"*/{board.FILE}") for one in board.read(path, warn)]
        kept = [one for one in others if Path(one.judged.submission).is_file()]
        page = self.place.parent / "board.html"
        write_atomically(page, judged_page.of_board([*kept, *entries]).encode())
        best = board.ranked(entries)
        if config.reward:
            rewards(sorted((one.judged for one in best), key=lambda one: one.submission))
        elif self.is_quiet:
            sys.stdout.write("".join(one.line().decode() for one in best))
        else:
            judged_page.table([one.judged for one in best], self.problem.path.name).print(console)
        self.tell(f"The page of all boards: {page}")

    def beside_best(self, files: tuple[Path, ...] | None) -> tuple[Path, ...] | None:
        """Return submissions with the best known one."""
        best = self.config.best
        if best is None or best.resolve() in (one.resolve() for one in files or ()):
            return files
        return (*(files or ()), best)

    def judged(
        self,
        submissions: dict[str, SubmissionFile],
        settle: Callable[[Judged, str], None] = lambda one, isolation: None,
    ) -> tuple[Trial, tuple[Judged, ...]]:
        """Return the trial of submissions, and its verdicts. ``settle`` gets each verdict as soon as it is
        certain."""
        config, session = self.config, self.session
        memory = None if config.memory_gb is None else int(config.memory_gb * 1e9)
        best = config.best
        is_best = (name for name, one in submissions.items() if best and one.path.resolve() == best.resolve())
        caches = {name: os.environ.get(name, "") for name in (inductor.CACHE, inductor.TRITON_CACHE)}
        folders = [*(caches | inductor.caches()).values(), str(inductor.headers())]
        if isinstance(self.problem, FlashInferProblem):
            build = self.place / BUILD
            results.asked_for(build / "any")
            folders.append(str(build))
        kernel = (self.place / "kernel").resolve()
        with DeviceLock(session.device, config.wait_s, complain if self.is_quiet else warn):
            folder.write(kernel, self.problem, self.plan, submissions)
            shares_gpu = session.device.kind == "cuda"
            confined = confinement.limits(memory, folders, shares_gpu, read=[kernel, ROOT])
            with console.status("Reading the problem …") as status:
                trial = Trial(
                    kernel,
                    session,
                    self.plan,
                    submissions,
                    RoundLimits(config.rounds, config.most_rounds),
                    Rule(margin=config.margin),
                    status.update if console.is_terminal else self.step,
                    confined,
                    Memcheck(session.device, session.seed, session.timeout_s),
                    settle,
                    config.torch_compile and config.rounds > 0,
                    next(is_best, None),
                )
                return trial, trial.run()

    def step(self, line: str) -> None:
        """Print a line about a step to stderr, where no terminal shows the latest one alone."""
        if not self.is_quiet:
            complain(line)


def size_of(name: str) -> str:
    """Return the size of the problem that a word sets. ``problem_seed`` sets the size ``seed``, because the
    command has an option of that name."""
    size = name.removeprefix("problem_")
    return size if size in JudgeConfig.model_fields else name


def rewards(judged: Iterable[Judged]) -> None:
    """Print the reward of each submission."""
    for one in judged:
        print(f"{one.reward:.4f}")


def complain(line: str) -> None:
    """Print a line to stderr, because stdout holds the JSON."""
    print(line, file=sys.stderr)


def named(problem: Problem, files: tuple[Path, ...] | None) -> tuple[dict[str, SubmissionFile], list[Judged]]:
    """Return the submissions by the names of their providers, and a verdict on each file that is not in the
    format. Without files the problem's own code is the submission. Raises UserError for a file that can't be
    read, and for the problem's own."""
    if files is None:
        return {"own": problem.own}, []
    found, wrong = dict[str, SubmissionFile](), list[Judged]()
    for path in files:
        if path.is_dir():
            raise UserError(f"{path} is a folder: write a submission's file, or judge board {path} for all.")
        try:
            found[folder.provider_name(path, [*found])] = problem.submission(path)
        except UserError as error:
            if path.resolve() in (one.resolve() for one in problem.files()):
                raise UserError(f"{error} Leave submission= out to judge the problem's own code.") from error
            if isinstance(error.__cause__, OSError):
                raise
            wrong.append(board.not_in_format(path, error))
    return found, wrong


if __name__ == "__main__":
    if (word := next(alone(sys.argv[1:]), "board")) != "board":
        fail(
            f"can't read '{word}': write kernel={word} for a problem, submission={word} for a submission, or "
            "board FOLDER."
        )
    sys.argv[1:] = positional(sys.argv[1:], "action", "submission")
    run_stage("judge", JudgeConfig, run)
