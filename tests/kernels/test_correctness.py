"""Every provider that this host can run gives the float64 reference within its kernel's tolerance."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_pipeline.declared import Value
from tests.kernels.kernel_cases import (
    ON_GPU,
    SMALL,
    Case,
    MatrixCase,
    cases,
    extremes,
    with_values,
    with_words,
)

# 1 and 37: less than a block and a warp. 128: a block exactly. 781: several blocks and a rest.
SIZES = (1, 37, 128, 781)
LARGE = (1823, 4096, 12671, 50257)
COMPILED = cases(lambda case: case.compiles_slowly, slow=True)
COMPILED_WORDS = None if ON_GPU else ()
"""Inductor takes seconds for each word, and on a CPU the code is another."""
HERE = [case for one in cases(slow=True) for case in one.values if isinstance(case, Case)]


@pytest.mark.parametrize(
    ("case", "words", "size"),
    [
        *with_words(cases(), SIZES, others=(781,)),
        *(with_words(cases(), LARGE, others=(1, 37, 128, *LARGE)) if ON_GPU else ()),
        *with_words(COMPILED, (37,), others=COMPILED_WORDS),
    ],
)
def test_agrees_with_the_reference(case: Case, words: dict[str, Value], size: int) -> None:
    problem = case.problem(size, **words)
    parameters = case.configuration(problem, preferred=SMALL)
    case.verify(problem, case.inputs(problem), parameters)


def mark(x: torch.Tensor) -> float:
    """What no provider may read."""
    return math.nan if x.dtype.is_floating_point else 1


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def every_second_column(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=-1)[..., ::2]


def every_second_row(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=-2)[..., ::2, :]


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    padded = x.new_full((*x.shape[:-1], x.shape[-1] + 11), mark(x))
    padded[..., 3:-8] = x
    return padded[..., 3:-8]


def unaligned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_full((1,), mark(x)), x.flatten()])[1:].view(x.shape)


def every_second_element(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.repeat_interleave(2)[::2]


def one_row_repeated(x: torch.Tensor) -> torch.Tensor:
    return x[..., :1, :].expand(x.shape)


LAYOUTS = (transposed, every_second_column, every_second_row, padded_rows, unaligned, one_row_repeated)


# How many bytes an element has decides what is aligned, and nothing else about a layout.
OTHERS = tuple(layout for layout in LAYOUTS if layout is not unaligned) if ON_GPU else ()


@pytest.mark.parametrize(
    ("case", "words", "layout"), with_words(cases(), LAYOUTS, others=(unaligned, *OTHERS))
)
def test_any_layout(
    case: Case, words: dict[str, Value], layout: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    if case.kernel.in_place and layout is one_row_repeated:
        pytest.skip("nothing can be written to one place twice")
    problem = case.problem(261, **words)
    parameters = case.configuration(problem, preferred=SMALL)
    inputs = tuple(
        layout(x) if x.dim() > 1 else every_second_element(x) if x.dim() == 1 else x
        for x in case.inputs(problem)
    )
    case.verify(problem, inputs, parameters)


@pytest.mark.parametrize(
    ("case", "name", "value"), with_values(HERE, lambda values: dict.fromkeys((values[0], values[-1])))
)
def test_the_first_and_the_last_value_of_a_parameter(case: Case, name: str, value: Value) -> None:
    if case.is_simulated and value == 1024:
        pytest.skip("so many of Python's threads wait for each other for seconds")
    problem = case.problem(200)
    parameters = case.configuration(problem, pinned={name: value})
    case.verify(problem, case.inputs(problem), parameters)


@pytest.mark.parametrize(
    ("case", "words", "every"),
    [
        *with_words(cases(), (2,), others=(2 if ON_GPU else 5,)),
        *with_words(COMPILED, (2,), others=COMPILED_WORDS),
    ],
)
def test_one_extreme_value_in_each_input(case: Case, words: dict[str, Value], every: int) -> None:
    """``every`` second or fifth of them."""
    if case.kernel.as_made:
        pytest.skip("its tolerance is for inputs as they are made")
    problem = case.problem(37, **words)
    parameters = case.configuration(problem, preferred=SMALL)
    # Those in a matrix's first input are in test_matrices.py.
    known = 1 if isinstance(case, MatrixCase) else 0
    for which, x in enumerate(case.inputs(problem)):
        if which < known or not x.dtype.is_floating_point:
            continue
        # The tolerance is for what is large in the first input: a large weight makes any error larger.
        largest = case.kernel.largest if which == 0 else 1.0
        for value in extremes(case.kernel, x.dtype)[::every]:
            if math.isfinite(value) and abs(value) > largest:
                continue
            inputs = case.inputs(problem)
            inputs[which][tuple(size // 3 * 2 for size in x.shape)] = value
            case.verify(problem, inputs, parameters)


@pytest.mark.parametrize("case", cases(lambda case: case.provider.interpreted))
def test_writes_all_of_its_output_and_nothing_beside_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbours of all that it allocates are marked, and so is the memory itself before the call."""
    buffers: list[torch.Tensor] = []
    margin, marked_by = 4096, -123
    real_empty, real_new_empty = torch.empty, torch.Tensor.new_empty

    def marked(like: torch.Tensor) -> torch.Tensor:
        flat = like.new_full((like.numel() + 2 * margin,), marked_by)
        buffers.append(flat)
        return flat[margin:-margin].view(like.shape)

    def empty(*shape: Any, **options: Any) -> torch.Tensor:
        return marked(real_empty(*shape, **options))

    def empty_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
        options.pop("memory_format", None)
        return marked(real_new_empty(x, x.shape, **options))

    def new_empty(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        like = real_new_empty(x, *shape, **options)
        # An empty tensor gets no mark: Triton's interpreter puts a tensor's storage there.
        return marked(like) if like.numel() > 0 else like

    problem = case.problem(261)
    parameters = case.configuration(problem, preferred=SMALL)
    inputs = case.inputs(problem)
    expected = case.in_form.expected(problem, inputs)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", empty_like)
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    outputs = case.call(problem, inputs, parameters)
    monkeypatch.undo()
    case.check(outputs, expected, problem)
    assert buffers or case.kernel.in_place, "it allocates by torch.empty, torch.empty_like or new_empty"
    for buffer in buffers:
        assert (buffer[:margin] == marked_by).all()
        assert (buffer[-margin:] == marked_by).all()


@pytest.mark.parametrize("case", cases(lambda case: case.is_own))
def test_refuses_a_dtype_that_it_would_truncate(case: Case) -> None:
    known = {value for one in case.kernel.dimensions().values() for value in one.values or ()}
    problem = case.problem(37)
    inputs = tuple(x.double() if x.dtype.is_floating_point else x for x in case.inputs(problem))
    if "float64" in known or all(x.dtype != torch.float64 for x in inputs):
        pytest.skip("it would not")
    with pytest.raises(case.refusal, match=r"got float64|not Double"):
        case.call(problem, inputs, case.configuration(problem, preferred=SMALL))
