"""Find and read the tables of tuned configurations of this and other GPUs."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

from ..contract import Gpu
from . import table
from .table import Table, TableError

LIBRARY = Path(__file__).resolve().parents[1]

PLACES = (LIBRARY.parent / "results" / "tuned", LIBRARY / "tuned")
"""The folders with tables: in a checkout of the repository, and in an installed package."""

VARIABLE = "KERNELS_TUNED"
"""The environment variable that names another table, or a folder of them."""


def table_of(slug: str) -> Table | None:
    """Return the table for a GPU, or None. Warn of a table that can't be used."""
    file = file_of(slug)
    return None if file is None else read(file, slug)


def tables() -> dict[str, Path]:
    """Return the files of the tables that there are, by the slugs of their GPUs."""
    return {file.stem: file for folder in reversed(folders()) for file in sorted(folder.glob("*.json"))}


def _named() -> Path | None:
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def folders() -> tuple[Path, ...]:
    """Return the folders that may hold tables."""
    named = _named()
    return PLACES if named is None else (named,)


def file_of(slug: str) -> Path | None:
    """Return the file of a GPU's table, or None. A file that the variable names is the table, whatever its
    name."""
    named = _named()
    if named is not None and named.is_file():
        return named
    return next((file for one in folders() if (file := one / f"{slug}.json").is_file()), None)


def warn_of_variable(slug: str) -> None:
    """Warn if the variable names no table of a GPU."""
    if (named := _named()) is not None:
        lacks = f"holds no {slug}.json" if named.is_dir() else "does not exist"
        warn(f"{VARIABLE}={named} {lacks}; torch is called.")


@functools.cache
def read(file: Path, slug: str) -> Table | None:
    """Return the table of a GPU in a file; None, with a warning, if it can't be used."""
    try:
        return table.read(file, slug)
    except TableError as error:
        warn(f"the table {file} {error}; torch is called.")
        return None


@functools.cache
def sibling(places: tuple[Path, ...], slug: str, gpu: Gpu) -> tuple[Path, Table] | None:
    """Return the table, with its file, of the most similar other GPU of the same compute capability; None if
    there is none. Tables that can't be used are skipped."""
    found = []
    for file in (file for folder in places for file in sorted(folder.glob("*.json")) if file.stem != slug):
        try:
            one = table.read(file, file.stem)
        except TableError:
            continue
        other = one.properties
        if other is not None and other.capability == gpu.capability:
            apart = abs(other.multiprocessors - gpu.multiprocessors), abs(other.l2_cache - gpu.l2_cache)
            found.append((apart, file, one))
    return min(found, key=lambda each: each[:2])[1:] if found else None


said: set[str] = set()
"""The sentences of which this process has warned."""


def warn(sentence: str, category: type[Warning] = RuntimeWarning, stacklevel: int = 2) -> None:
    """Warn once per process and sentence."""
    if sentence not in said:
        said.add(sentence)
        warnings.warn(sentence, category, stacklevel)
