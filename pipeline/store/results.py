"""Locate result files and read them, by GPU."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kernel_pipeline.errors import UserError
from kernel_pipeline.files import LOCAL
from kernel_pipeline.records.base import Record, ValidationError
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.fields import NAME, visible
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

from .. import ROOT
from .rows_that_count import own_rows

R = TypeVar("R", bound=Record)

TRACKED = ("results", "reports")
"""The folders in git, which hold results of GPUs."""

KINDS = ("build", "ceilings", "codegen", "counters", "environment", "finals", "profile", "timings", "tuned")
"""The folders of ``results`` that stages of dvc.yaml read and write."""

CURRENT = Path("build/environment.json")
"""The file in which the stage ``environment`` names this machine, below the repository's root."""


def folder_for(folder: Path, kind: str) -> Path:
    """Return the folder for a device's results, given the requested folder. A CPU's results belong to this
    host alone, so they go to ``local/`` in place of the repository's own folders."""
    for name in TRACKED:
        if kind == "cpu" and folder.resolve() == ROOT / name:
            place, here = LOCAL / name, Path.cwd()
            return place.relative_to(here) if place.is_relative_to(here) else place
    return folder


def is_ad_hoc(output: Path) -> bool:
    """Whether a sweep into the folder is ad hoc, and not part of the repository's results."""
    return output.resolve() not in (ROOT / "results", LOCAL / "results")


def asked_for(path: Path) -> None:
    """Create the folder of an output path: DVC expects it even if a CPU's results go elsewhere. Raises
    UserError when it can't be created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Path.exists() raises for a name that is too long.
        there = next(folder for folder in path.absolute().parents if os.path.exists(folder))  # noqa: PTH110
        why = error.strerror if there.is_dir() else "it is a file"
        raise UserError(
            f"no results can be written to {path.parent}: no folder can be made in {there} ({why}); "
            "name another folder by output=."
        ) from error


def make_folders() -> None:
    """Create the folders that stages of dvc.yaml depend on but git does not hold: DVC runs no stage whose
    dependencies are missing. Raises UserError when one can't be created."""
    for place in (ROOT, LOCAL):
        for kind in KINDS:
            asked_for(place / "results" / kind / "any")
        asked_for(place / "reports/any")
    (LOCAL / "published").touch()


def folders_of(folder: Path, local: bool = True) -> list[Path]:
    """Return the folders whose results belong together: the given folder, and with ``local`` this host's own
    folder if the given folder is the repository's.
    """
    own = folder_for(folder, "cpu")
    return [folder, own] if local and own != folder and own.is_dir() else [folder]


def ledger_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the ledger of one kernel on one GPU."""
    return folder / "timings" / kernel / f"{gpu}.jsonl"


def config_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the resolved configuration of the sweep that last wrote the ledger."""
    return ledger_path(folder, kernel, gpu).with_suffix(".yaml")


def environment_path(folder: Path, gpu: str) -> Path:
    """Return the path of the environment in which one GPU's results were measured."""
    return folder / "environment" / f"{gpu}.json"


def ceilings_path(folder: Path, gpu: str) -> Path:
    """Return the path of one GPU's measured ceilings."""
    return folder / "ceilings" / f"{gpu}.json"


def build_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the assembler's resource report on one kernel's extensions, as built on one
    machine."""
    return folder / "build" / kernel / f"{gpu}.json"


def codegen_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the rows about a kernel's generated code on one machine."""
    return folder / "codegen" / kernel / f"{gpu}.jsonl"


def profile_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the torch.profiler rows of a kernel's points on one machine."""
    return folder / "profile" / kernel / f"{gpu}.jsonl"


def counters_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the Nsight Compute counters of a kernel's points on one GPU."""
    return folder / "counters" / kernel / f"{gpu}.jsonl"


def tuned_path(folder: Path, gpu: str) -> Path:
    """Return the path of one GPU's table of tuned configurations."""
    return folder / "tuned" / f"{gpu}.json"


def inside(folder: Path, path: Path) -> bool:
    """Whether a path lies in the folder when all links are followed: results may come from others, and git
    keeps links."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False


def listed(folder: Path, pattern: str, warn: Callable[[str], None]) -> Iterator[Path]:
    """Yield the files of a pattern below the folder, in order. A file is skipped with a sentence to ``warn``
    if its name or its folder's name is not a plain word, or if it is a link out of the folder."""
    for path in sorted(folder.glob(pattern)):
        words = [*path.relative_to(folder).parts[1:-1], path.stem]
        if not all(re.fullmatch(NAME, word) for word in words):
            warn(f"{visible(str(path))} is not named after a kernel and a machine; skipped.")
        elif not path.is_file() or not inside(folder, path):
            warn(f"{path} is not a file in {folder}; skipped.")
        else:
            yield path


def machines_first_gpus(slugs: Iterable[str]) -> list[str]:
    """Return devices in the order of all tables and plots: GPUs first, then CPUs."""
    return sorted(set(slugs), key=lambda slug: (slug.startswith("cpu-"), slug))


@dataclass(frozen=True)
class Results:
    """The measurements, environments and ceilings of some results folders."""

    measurements: tuple[Measurement, ...]
    environments: dict[str, Environment]
    ceilings: dict[str, Ceilings]

    @property
    def kernels(self) -> list[str]:
        """The kernels that were measured."""
        return sorted({row.point.kernel for row in self.measurements})

    @property
    def gpus(self) -> list[str]:
        """The devices that were measured: GPUs first, then CPUs."""
        return machines_first_gpus(row.origin.gpu for row in self.measurements)


def load(folder: Path, warn: Callable[[str], None], local: bool = True) -> Results:
    """Read every ledger, environment and ceilings file below the folder, in the same order on all hosts. With
    ``local``, this host's own results are read beside the repository's.

    If a ledger holds a point twice, as after a killed sweep, the newest line is used. Unreadable ledger
    lines, and rows of another kernel or machine than their file, are skipped with a sentence to ``warn``. A
    broken environment or ceilings file raises UserError, because no result can be read without it.
    """
    rows = [row for path in ledgers(folder, warn, local) for row in own_rows(path, warn)]
    rows.sort(key=lambda row: (row.point.kernel, row.origin.gpu))
    return Results(tuple(rows), *machines(folder, warn, local))


def ledgers(folder: Path, warn: Callable[[str], None], local: bool = True) -> list[Path]:
    """Return every ledger below the folder, and with ``local`` this host's own beside the repository's."""
    return [path for place in folders_of(folder, local) for path in listed(place, "timings/*/*.jsonl", warn)]


def machines(
    folder: Path, warn: Callable[[str], None], local: bool = True
) -> tuple[dict[str, Environment], dict[str, Ceilings]]:
    """Return the environments and the ceilings below the folder, by machine, as ``load`` reads them."""
    environments: dict[str, Environment] = {}
    ceilings: dict[str, Ceilings] = {}
    for place in folders_of(folder, local):
        environments |= {p.stem: _of(Environment, p) for p in listed(place, "environment/*.json", warn)}
        read = {p.stem: _of(Ceilings, p) for p in listed(place, "ceilings/*.json", warn)}
        ceilings |= {gpu: one for gpu, one in read.items() if not one.is_disturbed}
    return environments, ceilings


M = TypeVar("M", Environment, Ceilings)


def _of(model: type[M], path: Path) -> M:
    found = read(model, path)
    if found.gpu != path.stem:
        raise UserError(
            f"{path} describes {found.gpu}, not {path.stem}; delete it and run `dvc repro` again."
        )
    return found


def read(model: type[R], path: Path) -> R:
    """Read one record from a JSON file. Raises UserError that says how to repair it."""
    try:
        return model.from_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{path} is not readable as {model.__name__.lower()}; delete it and run `dvc repro` again."
        ) from error


def read_if_there(model: type[R], path: Path) -> R | None:
    """Read one record from a JSON file, None if there is no file. Raises UserError as ``read`` does."""
    return read(model, path) if path.is_file() else None


def timed(
    folders: Sequence[Path], kernel: str, gpu: str, settings: str, warn: Callable[[str], None]
) -> dict[Point, Measurement]:
    """Return the timed measurements of one kernel on one GPU with these settings, from the first of the
    folders that has any."""
    for folder in folders:
        found = {
            row.point: row
            for row in own_rows(ledger_path(folder, kernel, gpu), warn)
            if row.outcome.timing is not None and row.parts.settings == settings
        }
        if found:
            return found
    return {}
