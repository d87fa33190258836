"""Tags by which a publisher knows its runs, and what people wrote to them, which stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.points.frozen import digest

IDENTITY, DIGEST, FILES = "identity", "digest", "files"
"""Tags: whose run it is, what it shows, and which files its artifacts are."""

COMPLETE, SUPERSEDED = "complete", "superseded"
"""Tags of what stays: on a parent, that all of its runs are there; on a run that was made twice, that a
publisher, and no person, deleted it."""

NOTE, SIGNATURE = "mlflow.note.content", "mlflow.note.published"
"""Tags: a description, and the digest of the one that was published. A person may have written another."""

PARENT = "mlflow.parentRunId"
"""Tag of a child run."""


def added_by_hand(existing: Iterable[Mapping[str, str]], ours: Mapping[str, str]) -> dict[str, str]:
    """Notes and tags that people gave to runs, by these runs' tags, which are about to be replaced by one
    with our tags."""
    mine = {*ours, IDENTITY, DIGEST, FILES, SUPERSEDED, SIGNATURE, NOTE}
    tags = list(existing)
    notes = [there[NOTE] for there in tags if is_by_hand(there)]
    return ({NOTE: notes[-1]} if notes else {}) | {
        key: value
        for there in tags
        for key, value in there.items()
        if key not in mine and not key.startswith("mlflow.")
    }


def signed(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags, with the digest of the description among them."""
    return {**tags, **({SIGNATURE: digest(tags[NOTE])} if NOTE in tags else {})}


def is_by_hand(tags: Mapping[str, str]) -> bool:
    """Whether a person wrote the description."""
    return NOTE in tags and digest(tags[NOTE]) != tags.get(SIGNATURE)
