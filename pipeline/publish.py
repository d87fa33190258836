"""Stage ``publish``: results and ad-hoc sweeps to MLflow.

    python -m pipeline.publish
    python -m pipeline.publish kernel=softmax device=auto
    python -m pipeline.publish tracking=server

The store shows what the ledgers hold now, and what each ad-hoc sweep measured. All of it can be made again
from the files: publishing twice changes nothing, and a store that was lost comes back. Runs that something
else wrote stay. A second command that publishes to the same SQLite store waits for the first.
"""

from __future__ import annotations

from pathlib import Path

from pipeline import UserError
from pipeline.command.options import PublishConfig
from pipeline.command.run import run_stage, say
from pipeline.tracking import publisher
from pipeline.tracking.publisher import Selection, Tracker

# Lines are never broken, so that a link or a command in them can be copied.


def publish(config: PublishConfig) -> None:
    """Log all results to the configured store and say how to look at them.

    Raises UserError when the input is not there or the store can't be used.
    """
    sources = sources_of(config)
    if sources is None:
        return
    published = publisher.publish(sources, tracker_of(config), say)
    if published is not None:
        say(publisher.how_to_open(published))


def tracker_of(config: PublishConfig) -> Tracker:
    """The store that is configured."""
    return Tracker(config.tracking.name, config.tracking.uri)


def sources_of(config: PublishConfig) -> Selection | None:
    """The content to log; None, after a sentence, for nothing. Raises UserError where nothing is left."""
    if config.tracking.name == "none":
        say("tracking=none: nothing is published; tracking=local or tracking=server would do it.")
        return None
    if config.input is None and config.runs is None:
        raise UserError("input=null and runs=null leave nothing to publish; name a folder for one of them.")
    # A kernel outside of the repository is known by its folder's name.
    kernel = config.kernel and Path(config.kernel).expanduser().resolve().name
    return Selection(
        config.input, config.runs, kernel, config.reports, config.artifacts, device=config.device
    )


if __name__ == "__main__":
    run_stage("publish", PublishConfig, publish)
