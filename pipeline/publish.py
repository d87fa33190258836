"""Stage ``publish``: publish results and ad-hoc sweeps to MLflow.

    python -m pipeline.publish
    python -m pipeline.publish kernel=softmax device=auto
    python -m pipeline.publish tracking=server

Writes the rows of ledgers and of each ad-hoc sweep. Publishing twice changes nothing, and a lost store can be
written again from the files. Runs of other tools stay. A second command that publishes to the same SQLite
store waits for the first. Several commands may publish to a server at the same time.
"""

from __future__ import annotations

from pathlib import Path

from kernel_pipeline.errors import UserError

from .command.options import PublishConfig
from .command.run import run_stage, say
from .tracking import publisher
from .tracking.publisher import Selection, Tracker


def publish(config: PublishConfig) -> None:
    """Publish to the configured store and print a link. Raises UserError if the input is missing or the store
    can't be used."""
    sources = sources_of(config)
    if sources is not None:
        publisher.publish(sources, tracker_of(config), say)


def tracker_of(config: PublishConfig) -> Tracker:
    """Return the configured store."""
    return Tracker(config.tracking.name, config.tracking.uri)


def sources_of(config: PublishConfig) -> Selection | None:
    """Return the files to publish; None, after a sentence, with tracking=none. Raises UserError if the
    options name no files."""
    if config.tracking.name == "none":
        say("tracking=none publishes nothing; write tracking=local or tracking=server instead.")
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
