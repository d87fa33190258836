"""The points of a sweep: each provider at every size, rows and dtype, and over the axes that it obeys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernels
from kernels.point import AXES, Point
from pipeline.errors import UserError, unknown
from pipeline.measure.record import digest
from pipeline.measure.settings import TimingSettings

if TYPE_CHECKING:
    from kernels.contract import Kernel, Provider

INSTRUMENT = 2
"""Raised when the way of measuring changes so that earlier numbers no longer compare; part of every key."""


CONTRACT = "__init__.py"
"""The file of a kernel's folder that holds its contract."""

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def expand(
    kernel: Kernel, providers: Sequence[str] | None, grids: Sequence[Mapping[str, Sequence[Any]]]
) -> list[Point]:
    """Every point of the grids, each once, those that share inputs side by side.

    A grid holds the values of size, rows, dtype and each member of AXES; a provider that does not obey an
    axis is there once, whatever the axis holds. Rows that are named but are the kernel's own are None in a
    point. Raises UserError for an unknown provider, and for rows where they follow from the size.
    """
    names = [provider.name for provider in kernel.providers]
    for name in providers or ():
        if name not in names:
            raise unknown(f"provider of {kernel.name}", name, names)
    chosen = [p for p in kernel.providers if providers is None or p.name in providers]
    sharing: dict[tuple[int | None, int, str], dict[Point, None]] = {}
    for axes in grids:
        for named, size, dtype, provider in product(axes["rows"], axes["size"], axes["dtype"], chosen):
            if named is not None and kernel.rows is None:
                raise UserError(
                    f"rows={named}: the rows of {kernel.name} follow from its size; leave rows out and write "
                    f"size={named}."
                )
            rows = None if named == kernel.rows else named
            for values in product(*(axes[axis] if axis in provider.axes else (None,) for axis in AXES)):
                launch = dict(zip(AXES, values, strict=True))
                point = Point(kernel.name, provider.name, size, dtype, **launch, rows=rows)
                sharing.setdefault((rows, size, dtype), {})[point] = None
    return [point for points in sharing.values() for point in points]


def source_digest(kernel: str, provider: Provider) -> str:
    """Digest of the files that decide what the provider computes: the kernel's contract, the provider's own
    source, and for C++ and CUDA what that includes of ours."""
    files = {kernels.ROOT / kernel / CONTRACT, kernels.ROOT / kernel / provider.source}
    if provider.extension is not None:
        _add_included(kernels.ROOT / kernel / provider.source, files)
    return _digest(files)


def peer_digest(kernel: str) -> str:
    """The same of a peer, which a host that lacks its package does not know: what its contract says."""
    return _digest({kernels.ROOT / kernel / CONTRACT})


def _digest(files: set[Path]) -> str:
    return hashlib.sha256(b"\0".join(_content(path) for path in sorted(files))).hexdigest()[:16]


def _add_included(source: Path, files: set[Path]) -> None:
    """Add the files that a source includes by their path from it, and what these include."""
    for name in _INCLUDE.findall(source.read_text()):
        path = Path(os.path.normpath(source.parent / name))
        if path.is_file() and path not in files:
            files.add(path)
            _add_included(path, files)


def _content(path: Path) -> bytes:
    return path.name.encode() + b"\0" + path.read_bytes()


def key(point: Point, source: str, environment: str, settings: TimingSettings, seed: int) -> str:
    """What identifies a measurement: the same key means that measuring again could only repeat it."""
    fields = dict(vars(point))
    if point.rows is None:
        # Left out, so that what was measured before points had rows keeps its key.
        del fields["rows"]
    return digest([INSTRUMENT, fields, source, environment, settings.model_dump(), seed])
