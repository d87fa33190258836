"""What the rows of a run share, here and now."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline import ROOT
from pipeline.execution.identity import Identity
from pipeline.machine.device import Device
from pipeline.store import commit
from pipeline.store.environment import Environment
from pipeline.store.provenance import OutsideKernel, RunProvenance, hashed, keyed


def unknown_commits(identities: Sequence[Identity]) -> list[str]:
    """A sentence for each commit that new rows of these kernels can't name, with the reason. A kernel outside
    of any repository has none."""
    found = []
    if identities and (why := commit.unreadable(ROOT)):
        found.append(f"Rows don't say which commit they are of: {why}.")
    for loaded in (one.loaded for one in identities if one.loaded.is_outside):
        why = commit.unreadable(loaded.folder)
        if why is not None and "is in no git repository" not in why:
            found.append(f"Rows of {loaded.name} don't say which commit it is of: {why}.")
    return found


def run_here(
    run: str,
    command: str,
    environment: Environment,
    devices: Sequence[Device],
    identities: Sequence[Identity],
) -> RunProvenance:
    """A run of the commit that is here, on devices of one model, of the kernels whose ``identities`` are
    given: they share the settings, the seed and the measuring code."""
    head, is_dirty = commit.head(ROOT)
    outside = {}
    for loaded in (one.loaded for one in identities if one.loaded.is_outside):
        own, is_edited = commit.head(loaded.folder, ["."])
        outside[loaded.name] = OutsideKernel(commit=own, dirty=is_edited or is_dirty)
    first = identities[0]
    return RunProvenance(
        run=run,
        gpu=environment.gpu,
        devices={str(one): hashed(one.uuid) for one in devices},
        command=command,
        commit=head,
        dirty=is_dirty,
        outside=outside,
        image=environment.image,
        base_image=environment.base_image,
        environment=keyed(environment),
        settings=first.settings_digest,
        timing=first.settings.model_dump(),
        seed=first.seed,
        measurement=first.measurement,
    )
