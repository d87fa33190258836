"""A timer passes outputs to the final verification that only the timed call can have written."""

from itertools import count

import pytest
import torch

from kernel_pipeline.timing.timers import Rotation, checked_outputs, input_bytes, spoil

SETS = tuple((torch.full((1000,), float(i)),) for i in range(1, 4))
TENSORS = {
    "float32": torch.tensor([1.0, -0.0, torch.inf]),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "complex64": torch.ones(3, dtype=torch.complex64),
    "int64": torch.tensor([0, -1, 7]),
    "int8": torch.tensor([-128, 127, 0], dtype=torch.int8),
    "uint8": torch.tensor([255, 0, 1], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_no_element_of_a_spoilt_tensor_is_what_it_was(name: str) -> None:
    x = TENSORS[name].clone()
    spoil((x, None))  # type: ignore[arg-type]
    if x.is_floating_point() or x.is_complex():
        assert x.isnan().all()
    else:
        assert (x != TENSORS[name]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_neither_stale_memory_nor_a_kept_tensor_passes_for_an_output(size: int, dtype: torch.dtype) -> None:
    right = torch.ones(size, dtype=dtype)
    kept = right.clone()
    (checked,) = checked_outputs(Rotation(lambda x: kept, SETS))
    assert not (checked == right).any()

    calls = count()

    def writes_at_first(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(size, dtype=dtype)
        return out.fill_(1) if next(calls) == 0 else out

    (checked,) = checked_outputs(Rotation(writes_at_first, SETS))
    assert not torch.equal(checked, right)


def test_of_several_outputs_each_has_to_be_written_again() -> None:
    kept = torch.ones(1000, dtype=torch.int64)
    new, old = checked_outputs(Rotation(lambda x: (x * 2, kept), SETS))
    assert torch.equal(new, SETS[0][0] * 2)
    assert not (old == 1).any()


def test_what_is_no_tensor_is_handed_on_for_the_verification_to_say() -> None:
    assert checked_outputs(Rotation(lambda x: None, SETS)) == (None,)


@pytest.mark.parametrize("returned", [True, False])
def test_a_call_that_writes_over_its_inputs_gives_them_after_one_call(returned: bool) -> None:
    x, weight = torch.ones(4), torch.full((4,), 3.0)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        x.mul_(weight)
        return x if returned else None

    rotation = Rotation(call, ((x, weight),), in_place=True)
    for _ in range(3):
        x.fill_(1)
        outputs = checked_outputs(rotation)
        assert outputs[0] is x
        assert outputs[1] is weight
        assert torch.equal(x, weight), "by one call"


def test_the_bytes_of_all_sets_count() -> None:
    assert input_bytes(Rotation(torch.neg, SETS)) == 3 * 4000
