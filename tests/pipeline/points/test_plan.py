from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import kernels
from kernels.contract import Kernel, Provider, Tolerance, normal_input, numel, read_once_write_once
from kernels.point import Point
from pipeline import UserError
from pipeline.points import grid
from pipeline.timing.settings import TimingSettings

AXES = {
    "size": (64, 128),
    "rows": (None,),
    "dtype": ("float32", "float16"),
    "block_size": (256, 512),
    "num_warps": (4, 8),
    "num_stages": (2,),
}


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(
        name="planted",
        size_means="elements",
        shape=lambda size: (size,),
        inputs=normal_input,
        reference=torch.Tensor.double,
        bytes=read_once_write_once,
        flops=numel,
        tolerance=lambda dtype: Tolerance(rtol=0.0, atol=0.0),
        providers=(
            Provider("torch", torch.clone),
            Provider("rows", torch.clone, axes=("num_warps",), source="triton.py"),
            Provider("flat", torch.clone, axes=("block_size", "num_warps"), source="triton.py"),
            Provider("cuda", torch.clone, axes=("block_size",), source="cuda.cu"),
        ),
    )


def test_a_provider_is_there_once_for_each_value_of_the_axes_that_it_obeys(kernel: Kernel) -> None:
    points = grid.expand(kernel, None, [AXES])
    assert Counter(point.provider for point in points) == {"torch": 4, "rows": 8, "flat": 16, "cuda": 8}
    assert len(set(points)) == len(points)
    assert {point.num_stages for point in points} == {None}
    assert {point.block_size for point in points if point.provider in ("torch", "rows")} == {None}


def test_points_that_share_inputs_are_neighbours(kernel: Kernel) -> None:
    further = AXES | {"size": (128, 256), "block_size": (1024,)}
    points = grid.expand(kernel, None, [AXES, further])
    inputs = [(point.size, point.rows, point.dtype) for point in points]
    changes = sum(a != b for a, b in pairwise(inputs))
    assert changes == len(set(inputs)) - 1
    assert len(set(points)) == len(points), "a point that several grids hold is there once"
    assert {point.block_size for point in points if point.size == 128} == {None, 256, 512, 1024}


def test_pinned_axes_and_repeated_values(kernel: Kernel) -> None:
    pinned = AXES | {"size": (64, 64), "dtype": ("float32",), "block_size": (256,), "num_warps": (4, 4)}
    assert grid.expand(kernel, ["flat", "torch"], [pinned]) == [
        Point("planted", "torch", 64, "float32"),
        Point("planted", "flat", 64, "float32", block_size=256, num_warps=4),
    ]


def test_an_unknown_provider_is_said_with_the_known_ones(kernel: Kernel) -> None:
    said = r"unknown provider of planted 'row'\. Did you mean 'rows'\? Known: torch, rows, flat, cuda\."
    with pytest.raises(UserError, match=said):
        grid.expand(kernel, ["torch", "row"], [AXES])


def test_rows_are_those_of_the_point_and_the_kernels_own_are_no_rows(kernel: Kernel) -> None:
    many = replace(kernel, shape=lambda size: (4096, size))
    few = {"size": (64,), "rows": (3, None, 4096), "dtype": ("float32",)}
    points = grid.expand(many, ["torch"], [AXES | few])
    assert points == [Point("planted", "torch", 64, "float32", rows=rows) for rows in (3, None)]
    assert [many.shape_of(point) for point in points] == [(3, 64), (4096, 64)]
    assert [many.interpreted_shape(point) for point in points] == [(3, 64), (8, 64)]
    assert [str(point) for point in points] == [
        "planted/torch size=64 rows=3 float32",
        "planted/torch size=64 float32",
    ]
    assert [point.extent for point in points] == ["3x64", "64"]


def test_rows_that_follow_from_the_size_can_not_be_named(kernel: Kernel) -> None:
    said = r"rows=37: the rows of planted follow from its size; leave rows out and write size=37\."
    with pytest.raises(UserError, match=said):
        grid.expand(kernel, None, [AXES | {"rows": (37,)}])


FILES = {
    "planted/__init__.py": "",
    "planted/triton.py": "",
    "planted/cuda.cu": '#include <vector>\n#include "planted.h"\n# include "../include/rows.cuh"\n',
    "planted/planted.h": '#include "../include/common.h"\n#include "no such file.h"\n',
    "planted/README.md": "",
    "include/common.h": '#include "rows.cuh"\n',
    "include/rows.cuh": '#include "common.h"\n',
    "include/unused.h": "",
    "other/__init__.py": "",
}


@pytest.mark.parametrize(
    ("provider", "its_own"),
    [
        ("torch", {"planted/__init__.py"}),
        ("flat", {"planted/__init__.py", "planted/triton.py"}),
        (
            "cuda",
            {
                *("planted/__init__.py", "planted/cuda.cu", "planted/planted.h"),
                *("include/common.h", "include/rows.cuh"),
            },
        ),
    ],
)
def test_the_source_digest_changes_exactly_with_the_providers_files(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, its_own: set[str]
) -> None:
    monkeypatch.setattr(kernels, "ROOT", tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    chosen = kernel.provider(provider)
    before = grid.source_digest("planted", chosen)
    changing = set()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text + "// edited\n")
        if grid.source_digest("planted", chosen) != before:
            changing.add(name)
        (tmp_path / name).write_text(text)
    assert changing == its_own
    assert grid.source_digest("planted", chosen) == before


POINT = Point("softmax", "triton_row", 1024, "float32", num_warps=4)
SETTINGS = TimingSettings()


def test_a_key_is_the_same_in_every_process_and_version() -> None:
    """Literals: were keys to change without a reason, every ledger would be measured again. Both are from
    before points had rows."""
    every_axis = Point("layernorm", "triton_online", 50257, "bfloat16", 4096, 16, 2)
    assert grid.key(POINT, "source", "environment", SETTINGS, 0) == "460c3af20f7affda"
    assert grid.key(every_axis, "source", "environment", SETTINGS, 7) == "47903b30e5b97ea5"


def test_a_key_tells_apart_whatever_could_change_the_number() -> None:
    keys = [grid.key(POINT, "source", "environment", SETTINGS, 0)]
    keys += [grid.key(POINT, "edited", "environment", SETTINGS, 0)]
    keys += [grid.key(POINT, "source", "new driver", SETTINGS, 0)]
    keys += [grid.key(POINT, "source", "environment", SETTINGS, 1)]
    points = {"kernel": "gelu", "provider": "x", "size": 1, "dtype": "float16", "num_warps": 8}
    points |= {"block_size": 4, "num_stages": 4, "rows": 4}
    assert set(points) == {field.name for field in fields(Point)}, "every field is tried"
    for name, value in points.items():
        changed = replace(POINT, **{name: value})  # type: ignore[arg-type]
        keys.append(grid.key(changed, "source", "environment", SETTINGS, 0))
    settings = {"timer": "event", "cache": "hot", "stopping": "count", "target_rel_ci": 0.1}
    settings |= {"min_samples": 3, "max_seconds": 9.0}
    assert set(settings) == set(TimingSettings.model_fields), "every setting is tried"
    for name, value in settings.items():
        changed_settings = SETTINGS.model_copy(update={name: value})
        keys.append(grid.key(POINT, "source", "environment", changed_settings, 0))
    assert len(set(keys)) == len(keys)
