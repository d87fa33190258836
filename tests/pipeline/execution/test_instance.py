"""A point made ready to call."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.execution import instance
from pipeline.points.frozen import Values
from pipeline.points.point import Point

PLANTED = Path(instance.__file__).parents[2] / "tests" / "planted"
CPU, META = torch.device("cpu"), torch.device("meta")


def softmax(provider: str, rows: int = 37, columns: int = 5, **parameters: int) -> Point:
    problem = Values({"rows": rows, "columns": columns, "dtype": "float32"})
    return Point(kernel="softmax", provider=provider, problem=problem, parameters=Values(parameters))


def test_an_instance_is_called_with_inputs_alone() -> None:
    made = instance.load_instance("softmax", softmax("triton_row", num_warps=8))
    assert made.call.keywords == {"num_warps": 8}  # type: ignore[attr-defined]
    made = instance.load_instance("softmax", softmax("torch"))
    (x,) = made.inputs(CPU, 0)
    assert x.shape == (37, 5)
    assert torch.equal(made.call(x), torch.softmax(x, -1))
    assert made.library is None


def test_inputs_are_of_the_seed_and_without_data_on_meta() -> None:
    made = instance.load_instance("softmax", softmax("torch"))
    (one,), (same,), (other,) = (made.inputs(CPU, seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    (nothing,) = made.inputs(META, 0)
    assert (nothing.device, nothing.shape) == (META, one.shape)


def test_inputs_are_in_the_form_that_a_provider_takes() -> None:
    problem = Values({"rows": 2, "columns": 64, "group": 32, "dtype": "float32"})
    packed, bytewise = (
        instance.standalone(str(PLANTED / "packed"), Point(kernel="packed", provider=name, problem=problem))
        for name in ("whole", "bytewise")
    )
    (given, _), (formed, _) = packed.inputs(CPU, 3), bytewise.inputs(CPU, 3)
    assert (given.shape, formed.shape) == ((2, 32), (2, 64))
    assert torch.equal(formed[:, 1::2] * 16 + formed[:, ::2], given)
    assert bytewise.loaded.outputs(bytewise.problem) == packed.loaded.outputs(packed.problem)
    assert [x.shape for x in bytewise.inputs(META, 3)] == [x.shape for x in bytewise.inputs(CPU, 3)]
