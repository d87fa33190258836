"""Did a change make anything slower? Measures both versions side by side, in rounds, until each point is
decided.

    python -m pipeline.compare kernel=softmax
    python -m pipeline.compare a=origin/main b=HEAD by=2% at_most=10m undecided=pass
    python -m pipeline.compare kernel=softmax a=triton_tile/1024x4w b=cuda/1024x8w
    python -m pipeline.compare kernel=softmax a=env:triton==3.6.0 b=env:triton==3.7.1
    python -m pipeline.compare a=nvidia-h200 b=nvidia-h100-80gb-hbm3
    python -m pipeline.compare kernel=softmax self_test=true
    python -m pipeline.compare kernel=matmul provider=triton_tiled a=v1 b=HEAD by=2% bisect=true

Without a and b, the edited tree is compared with the last commit, and a commit without edits with its parent.
Only points whose sources differ are measured. Without kernel= these are the points of all kernels. Prints a
table with each ratio, its interval and the verdict. After an interruption the same command continues.

env:PACKAGE==VERSION is the working tree with another version of a package, which pip installs into a folder
of its own; env:FOLDER takes the packages of a virtual environment or a folder. Without a, the other side has
the installed packages.

bisect=true finds the first commit after a, up to b, that is slower than a. It compares about log2(n) of n
commits with a. It skips a commit that stays undecided, does not build or fails. With two versions of a
package it searches the versions that pip's indexes offer.

Exits with 0 if b is not slower or there is nothing to compare; with 1 after a regression, which is a point
that is slower in b, or fails or is incorrect only in b; and with 3 if a point is undecided.

Two machines are compared by their stored results, for one kernel or for all, without measuring and without a
verdict. The output says how much of the difference their ceilings explain, and how much slower the best
configuration of one machine is on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import monotonic

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.toolchain.extension import WITHOUT_GPU

from . import ROOT
from .command.options import CompareConfig
from .command.run import UnsuccessfulError, console, run_stage, say, warn
from .comparing import bisection
from .comparing.kernel_comparison import KernelComparison
from .execution.session import Session
from .inspection import device_code
from .points import catalog, notation
from .points.catalog import Entry
from .points.choice import asked
from .reporting import gpus
from .reporting.terminal import Progress
from .store import results, runs
from .verdicts import code, environments, opponents, rounds
from .verdicts.opponents import TREE, Files, Named
from .verdicts.rounds import RoundLimits


def run(config: CompareConfig) -> None:
    """Compare, and print the result. Raises UnsuccessfulError after a regression or if a point is
    undecided."""
    if config.most_rounds < config.rounds:
        raise UserError("most_rounds is less than rounds: write a larger most_rounds=N, or fewer rounds.")
    both = gpus.found(config.a, config.b, (config.output, ROOT / "results"), warn)
    unused = _unused(config, of_machines=both is not None)
    if unused:
        raise UserError(unused)
    if both is not None:
        show(config, both)
        return
    entry = None if config.kernel is None else config.entry
    if entry is None and config.provider:
        raise UserError("provider= chooses providers of one kernel: write kernel=NAME, too.")
    if config.self_test:
        a, b = Named(TREE), Named(TREE)
    else:
        a, b = opponents.both(entry, config.a, config.b)
        if opponents.are_equal(entry, a, b):
            of = " and ".join(opponents.sources(entry))
            say(f"Nothing to compare: {of} are equal in {a.name} and {b.name}.")
            return
    a, b = with_packages(a), with_packages(b)
    chosen = device.resolve(config.device)
    with DeviceLock(chosen, config.wait_s, warn):
        if config.bisect:
            bisect(config, chosen, entry, a, b)
            return
        made = measured(config, chosen, entry, a, b)
    if not made:
        same = "sources and packages" if "environments" in (a.kind, b.kind) else "sources"
        say(f"Nothing to compare: at all points {a.name} and {b.name} have the same {same}.")
    elif config.tracking.name != "none":
        publish(config)
    if not config.self_test:
        conclude(config, made)


def _unused(config: CompareConfig, of_machines: bool) -> str:
    """Return a sentence about options that say nothing in this kind of comparison, or an empty text."""
    if config.self_test:
        named: dict[str, object] = {"a": config.a, "b": config.b, "bisect": config.bisect}
        why = "self_test=true compares the working tree with itself"
    elif of_machines:
        named = {"bisect": config.bisect, "at_most": config.at_most, "undecided": config.undecided}
        why = f"{config.a} and {config.b} are machines, which are compared by their results without a verdict"
    else:
        return ""
    given = [f"{name}=" for name, value in named.items() if value]
    return f"{why}: leave {' and '.join(given)} out." if given else ""


def with_packages(named: Named) -> Named:
    """Return a side whose packages, if it is an environment, are in a folder: pip installs them if needed."""
    if named.kind != "environments" or named.packages is not None:
        return named
    with console.status(f"{named.text}: asking pip …") as status:
        folder = environments.packages(named.text, status.update)
    say(f"{named.text} is {folder}.")
    return replace(named, packages=folder)


def measured(
    config: CompareConfig, chosen: device.Device, entry: Entry | None, a: Named, b: Named
) -> list[KernelComparison]:
    """Measure two sides. Returns the comparison of each kernel that has points to compare. Prints the results
    also after an interruption."""
    begin = monotonic()
    folder = results.folder_for(config.output, chosen.kind)
    session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, folder)
    with opponents.files(entry, a) as of_a, opponents.files(entry, b) as of_b:
        made = prepared(config, session, entry, (of_a, of_b))
        try:
            if made:
                hold(config, session, made, begin)
                explain(session, made)
        finally:
            for one in made:
                one.show()
    return made


def hold(config: CompareConfig, session: Session, made: Sequence[KernelComparison], begin: float) -> None:
    """Leave out the points whose machine code is the same, and measure the others of all kernels in rounds.
    No point is begun later than ``at_most`` after ``begin``."""
    for one in made:
        one.match()
    if session.device.kind == "cuda" and config.same_code == "skip":
        with console.status("Comparing the machine code of both sides …"):
            asked = [(one.entry.loaded.kernel, one.matches) for one in made if one.is_of_versions]
            same = device_code.same(asked, str(session.device), config.seed)
        for one in made:
            one.leave_out_same_code(same)
    prepared_s = monotonic() - begin
    until = begin + (inf if config.at_most is None else config.at_most)
    limits = RoundLimits(config.rounds, config.most_rounds, until)
    with Progress(console, f"rounds on {session.device.slug}") as progress:
        begun = [one.begin_rounds(limits, progress) for one in made]
        if limits.are_over and any(one.lacks() for one in begun):
            say(
                "No round began: listing the points, building and comparing the code took "
                f"{prepared_s:.0f} s, longer than at_most={config.at_most:g}s. The same command has less to "
                "build the next time."
            )
        rounds.hold(begun, session)
    for one in made:
        one.end()
    rounds_s = monotonic() - begin - prepared_s
    say(f"{prepared_s:.0f} s to list, build and compare code, {rounds_s:.0f} s of rounds.")


def explain(session: Session, made: Sequence[KernelComparison]) -> None:
    """Note how the compiled code of both sides differs, where a comparison asks for it."""
    capability = session.environment.compute_capability
    architecture = capability.replace(".", "") if capability else WITHOUT_GPU
    changed = [(one, match) for one in made for match in one.changed()]
    if changed:
        with console.status("Comparing the compiled code of both sides …"):
            lines = code.explained([match for _, match in changed], architecture)
        for (one, _), of_match in zip(changed, lines, strict=True):
            one.notes += of_match


def bisect(config: CompareConfig, chosen: device.Device, entry: Entry | None, a: Named, b: Named) -> None:
    """Find the first commit or version after a that is slower than a, and compare it with the one before.

    Raises UnsuccessfulError if there is such a commit or version, or if the search stays undecided.
    """
    if entry is None:
        raise UserError("bisect=true measures one kernel: write kernel=NAME.")
    with console.status("Listing what is between a and b …") as status:
        line = bisection.between(entry, a, b, status.update)
    unknown: list[Named] = []

    def is_slower(one: Named) -> bool | None:
        try:
            made = measured(config, chosen, entry, a, with_packages(one))
        except UserError as error:
            why = str(error)
        else:
            fates = {fate for one in made for fate in one.fates()}
            if "slower" in fates or not fates & {"failed", "undecided"}:
                return "slower" in fates
            why = "a point fails there." if "failed" in fates else "it is undecided whether it is slower."
        say(f"{one.name} is skipped: {why}")
        unknown.append(one)
        return None

    found = bisection.first_slower(line, is_slower)
    if not found and line[-1:] == unknown:
        raise UnsuccessfulError(f"it is undecided whether {b.name} is slower than {a.name}.", code=3)
    if not found:
        say(f"{b.name} is not slower than {a.name}: there is nothing to search.")
        return
    if len(found) == 1:
        before = bisection.before(entry, a, line, found[0])
        measured(config, chosen, entry, with_packages(before), with_packages(found[0]))
    for one in found:
        say(bisection.described(entry, one))
    which = (
        found[0].name if len(found) == 1 else f"one of the {len(found)} above: no time decides between them"
    )
    kind = "version" if a.kind == "environments" else "commit"
    raise UnsuccessfulError(f"the first {kind} that is slower than {a.name} is {which}.")


def prepared(
    config: CompareConfig, session: Session, entry: Entry | None, sides: tuple[Files, Files]
) -> list[KernelComparison]:
    """Build the extensions, and return the comparison of each kernel that has points to compare. Raises
    UserError if the named kernel can't be compared, or if a kernel can be read in a but not in b."""
    if entry is None:
        folders = [one.root / "kernels" for one in sides]
        names = [name for name in catalog.names() if all((folder / name).is_dir() for folder in folders)]
    entries = [entry] if entry is not None else [catalog.find(name) for name in names]
    made = [KernelComparison(config, session, one, sides) for one in entries]
    with console.status("Finding the points whose sources differ …"):
        asked_for = opponents.ask(sides, [[one.question(of.named) for one in made] for of in sides])
    for one, of_a, of_b in zip(made, *asked_for, strict=True):
        if of_a.answer and of_b.answer:
            one.pair(of_a.answer, of_b.answer)
        elif error := (of_a.error if entry is not None else None) or (of_b.error if of_a.answer else None):
            raise UserError(error)
        else:
            warn(f"{one.entry.name} is not compared: {of_a.error}")
    if entry is not None and not made[0].pairs:
        for note in made[0].notes:
            say(note)
    made = [one for one in made if one.pairs]
    builds = [[(one, build) for one in made if (build := one.to_build(number))] for number in (0, 1)]
    if any(builds):
        with console.status("Building the extensions of both sides …"):
            built = opponents.ask(
                sides,
                [
                    [one.question(of.named, build) for one, build in some]
                    for of, some in zip(sides, builds, strict=True)
                ],
            )
        for number, some in enumerate(builds):
            for (one, _), reply in zip(some, built[number], strict=True):
                one.leave_out(number, reply.answer.broken if reply.answer else {})
    return made


def conclude(config: CompareConfig, made: Sequence[KernelComparison]) -> None:
    """Raise UnsuccessfulError if any point got worse, or if a point is undecided and ``undecided`` is not
    ``pass``."""
    worse = [sentence for one in made for sentence in one.worse()]
    if worse:
        raise UnsuccessfulError("\n".join(worse))
    undecided = sum(one.count("undecided") for one in made)
    if undecided and config.undecided != "pass":
        raise UnsuccessfulError(
            f"it is undecided whether b is slower at {notation.points(undecided)}: a larger at_most= or "
            "most_rounds= gives more rounds, and undecided=pass exits with 0.",
            code=1 if config.undecided == "fail" else 3,
        )


def show(config: CompareConfig, both: gpus.Machines) -> None:
    """Print two machines' results side by side, for one kernel or for all kernels of both. Raises UserError
    if the machines have no requested problem in common."""
    as_markdown = config.format == "markdown"
    if config.kernel is None:
        if config.provider:
            raise UserError("provider= chooses providers of one kernel: write kernel=NAME, too.")
        shown = [both.show(console, name, as_markdown, lambda _: True) for name in both.kernels]
    else:
        wanted = asked(config.entry, config.pin, config.provider)
        shown = [both.show(console, config.entry.name, as_markdown, wanted)]
    if not any(shown):
        of = "" if config.kernel is None else f" of {config.kernel}"
        which = " that these options choose" if config.pin or config.provider else ""
        raise UserError(f"{both.a} and {both.b} have no measured problem{of} in common{which}.")


def publish(config: CompareConfig) -> None:
    """Log the comparisons in the output folder to MLflow. All rounds are in files already, so a failing
    tracker loses none."""
    from .tracking import publisher
    from .tracking.publisher import Selection, Tracker

    sources = Selection(
        runs=runs.folder_in(config.output), kernel=config.kernel and config.entry.name, ids=frozenset()
    )
    publisher.publish(sources, Tracker(config.tracking.name, config.tracking.uri), say)


if __name__ == "__main__":
    run_stage("compare", CompareConfig, run)
