"""Where results lie, and how all of them are read: by GPU, from text files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from kernels.point import Point
from pipeline.errors import UserError
from pipeline.measure.ceiling import Ceilings
from pipeline.measure.device import Environment
from pipeline.measure.ledger import Ledger
from pipeline.measure.record import GROUPS, POINT_FIELDS, Measurement, Outcome, Record

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    "key",
    *POINT_FIELDS,
    *(name for name in Outcome.model_fields if name not in GROUPS),
    *(name for group in GROUPS.values() for name in group.model_fields),
]
"""The columns of a ledger row."""

PLACE = ["kernel", "gpu", "dtype", "extent"]
"""The columns that name where providers meet. Rows are part of the extent, which is a text: as a column of
their own they are missing where they are the kernel's, and pandas takes no missing value for a group."""

BY_SIZE = ["size", "rows"]
"""The columns to sort extents by, with ``na_position="first"`` as in a ledger: the kernel's own rows come
first."""

R = TypeVar("R", bound=Record)


def ledger_path(folder: Path, kernel: str, gpu: str) -> Path:
    """The ledger of one kernel on one GPU."""
    return folder / "timings" / kernel / f"{gpu}.jsonl"


def config_path(folder: Path, kernel: str, gpu: str) -> Path:
    """The resolved configuration of the sweep that last wrote the ledger."""
    return ledger_path(folder, kernel, gpu).with_suffix(".yaml")


def environment_path(folder: Path, gpu: str) -> Path:
    """The environment that one GPU's results were measured in."""
    return folder / "environment" / f"{gpu}.json"


def ceilings_path(folder: Path, gpu: str) -> Path:
    """One GPU's measured ceilings."""
    return folder / "ceilings" / f"{gpu}.json"


def build_path(folder: Path, kernel: str, gpu: str) -> Path:
    """The assembler's resource report on one kernel's extensions, as built on one machine."""
    return folder / "build" / kernel / f"{gpu}.json"


def codegen_path(folder: Path, kernel: str, gpu: str) -> Path:
    """What one machine found of a kernel's generated code."""
    return folder / "codegen" / kernel / f"{gpu}.jsonl"


def profile_path(folder: Path, kernel: str, gpu: str) -> Path:
    """What torch.profiler showed of a kernel's points on one machine."""
    return folder / "profile" / kernel / f"{gpu}.jsonl"


def counters_path(folder: Path, kernel: str, gpu: str) -> Path:
    """What Nsight Compute counted at a kernel's points on one GPU."""
    return folder / "counters" / kernel / f"{gpu}.jsonl"


@dataclass(frozen=True)
class Results:
    """All that a results folder holds."""

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
        slugs = {row.origin.gpu for row in self.measurements}
        return sorted(slugs, key=lambda slug: (slug.startswith("cpu-"), slug))


def load(folder: Path, warn: Callable[[str], None]) -> Results:
    """Read every ledger, environment and ceilings file below the folder; sorted, so the same for all hosts.

    Of a point that a ledger holds twice, as one does after a sweep was killed, the newest line counts.
    Unreadable ledger lines are skipped with a sentence to ``warn``; a broken environment or ceilings file
    raises UserError, for no result can be read without them.
    """
    rows: list[Measurement] = []
    for path in sorted((folder / "timings").glob("*/*.jsonl")):
        rows += Ledger(path, warn).rows()
    return Results(
        measurements=tuple(rows),
        environments={p.stem: read(Environment, p) for p in sorted((folder / "environment").glob("*.json"))},
        ceilings={p.stem: read(Ceilings, p) for p in sorted((folder / "ceilings").glob("*.json"))},
    )


def read(model: type[R], path: Path) -> R:
    """One record from a JSON file. Raises UserError with the way to put it right."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(
            f"{path} is not readable as {model.__name__.lower()}; delete it and run `dvc repro` again."
        ) from error


def timed(
    folders: Iterable[Path], kernel: str, gpu: str, warn: Callable[[str], None]
) -> dict[Point, Measurement]:
    """What the ledger of one kernel on one GPU timed, from the first of the folders that has any."""
    for folder in folders:
        rows = Ledger(ledger_path(folder, kernel, gpu), warn).rows()
        if found := {row.point: row for row in rows if row.outcome.timing is not None}:
            return found
    return {}


def frame(measurements: Iterable[Measurement]) -> pd.DataFrame:
    """Measurements as a table of data: one row each, even for none, with a ledger row's columns and
    ``extent``."""
    import pandas as pd

    rows = [row.row() | {"extent": row.point.extent} for row in measurements]
    return pd.DataFrame(rows, columns=[*COLUMNS, "extent"]).astype({"rows": "Int64"})


def without_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table at the kernel's own number of rows: those that a plot against size can show."""
    return table[table["rows"].isna()]


def axes(row: Mapping[Any, Any]) -> str:
    """The launch parameters of a row as people write them: ``1024x8w`` is block_size 1024 and 8 warps, ``8w``
    is 8 warps alone, ``1024x8wx3s`` has 3 stages; empty for a provider without any."""
    parts = (("block_size", ""), ("num_warps", "w"), ("num_stages", "s"))
    given = ((row[name], unit) for name, unit in parts)
    # A table has NaN where a row has None.
    return "x".join(f"{value:.0f}{unit}" for value, unit in given if value is not None and not isnan(value))


def label(row: Mapping[Any, Any]) -> str:
    """A configuration as people write it: ``triton_online 1024x8w``."""
    return f"{row['provider']} {axes(row)}".rstrip()


def best_configurations(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest configuration of each provider at each kernel, GPU, dtype and extent; timed rows only.

    A timing not to be trusted is taken only where the provider has no other.
    """
    keys = [*PLACE, "provider"]
    timed = table[table["status"] == "ok"]
    ranked = timed.assign(distrusted=timed["valid"].eq(False)).sort_values(
        ["kernel", "gpu", "dtype", *BY_SIZE, "provider", "distrusted", "median_us"], na_position="first"
    )
    return ranked.drop_duplicates(keys).drop(columns="distrusted")


def best_providers(best: pd.DataFrame) -> pd.DataFrame:
    """The fastest of the best configurations at each kernel, GPU, dtype and extent, again a trusted one if
    there is any."""
    ranked = best.assign(distrusted=best["valid"].eq(False))
    ranked = ranked.sort_values(
        ["kernel", "gpu", "dtype", *BY_SIZE, "distrusted", "median_us", "provider"], na_position="first"
    )
    return ranked.drop_duplicates(PLACE).drop(columns="distrusted")


def against_baseline(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Add ``speedup``: how many times faster than the kernel's baseline provider on the same GPU, dtype and
    extent; NaN where the baseline was not timed. And ``tied``: whether that is no difference, because it is
    within the noise floor or the confidence interval of either.
    """
    import pandas as pd

    noise = best[["noise_floor", "rel_ci"]].astype(float).max(axis=1)
    of = best["provider"] == best["kernel"].map(baselines)
    base = best.assign(noise=noise)[of].set_index(PLACE)[["median_us", "noise"]]
    base = base.reindex(pd.MultiIndex.from_frame(best[PLACE])).set_axis(best.index)
    speedup = base["median_us"] / best["median_us"]
    tied = ~of & ((speedup - 1).abs() <= noise.combine(base["noise"], max))
    return best.assign(speedup=speedup, tied=tied)
