"""The files that MLflow keeps beside the run of a ledger, as its artifacts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.store import results

BESIDE = {".ptx", ".sass", ".ttgir"}
"""Texts that a listing shows already; they stay beside it and are not uploaded."""


def files(
    kernel: str,
    gpu: str,
    kernels: Sequence[str],
    input: Path,
    reports: Path | None = None,
    artifacts: Path | None = None,
) -> dict[str, Path]:
    """The files that belong to one ledger, by their path among the parent run's artifacts.

    Of the reports, those that no other kernel's name is part of the path of. On a host without a GPU they lie
    with what is this host's own. A file that a link leads to outside of its folder is not among them.
    """
    found = {
        f"results/{path.relative_to(folder)}": path
        for folder in results.folders_of(input)
        for path in (
            results.ledger_path(folder, kernel, gpu),
            results.config_path(folder, kernel, gpu),
            results.environment_path(folder, gpu),
            results.ceilings_path(folder, gpu),
            results.build_path(folder, kernel, gpu),
            results.codegen_path(folder, kernel, gpu),
            results.profile_path(folder, kernel, gpu),
            results.counters_path(folder, kernel, gpu),
        )
        if path.is_file() and results.inside(folder, path)
    }
    if artifacts:
        for kind in ("profile", "counters", "codegen"):
            folder = artifacts / kind / kernel
            for path in sorted([*folder.glob(f"{gpu}.*"), *(folder / gpu).rglob("*")]):
                if path.suffix not in BESIDE and results.inside(artifacts, path):
                    found[f"artifacts/{kind}/{path.name}"] = path
    if reports:
        own = results.folder_for(reports, "cpu")
        chosen = own if own.is_dir() else reports
        for path in sorted(chosen.rglob("*")):
            parts = path.relative_to(chosen).parts
            owners = {owner for part in parts if (owner := _owner(part, kernels))}
            hidden = any(part.startswith(".") for part in parts)
            if owners <= {kernel} and not hidden and results.inside(chosen, path):
                found[f"reports/{'/'.join(parts)}"] = path
    return {name: path for name, path in found.items() if path.is_file()}


def _owner(part: str, kernels: Sequence[str]) -> str | None:
    """The kernel that a file or folder is named after: ``softmax.svg``, ``softmax-float32.svg``."""
    owners = [name for name in kernels if re.match(rf"{re.escape(name)}([.-]|$)", part)]
    return max(owners, key=len, default=None)
