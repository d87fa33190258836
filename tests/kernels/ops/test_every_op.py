"""Properties of every kernel that is a function."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_pipeline import loading, ops
from kernel_pipeline.loading import Loaded, as_tuple
from tests.kernels.kernel_cases import EVERY_KERNEL, Case, cases, interpreted, problem_of, with_words

CALLED = [loaded for loaded in EVERY_KERNEL if loaded.name in ops.names()]
OPS = [pytest.param(loaded, id=loaded.name) for loaded in CALLED]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


OTHER_WORDS = None if torch.cuda.is_available() else ()
"""A kernel's words reach every provider by the same way, which the baseline's tests go."""


def is_called(case: Case) -> bool:
    return case.provider.reference is None and case.loaded.name in ops.names()


def is_baseline(case: Case) -> bool:
    return case.provider.name == case.kernel.baseline


def call_of(loaded: Loaded, **words: Any) -> tuple[Any, tuple[Any, ...]]:
    """A small problem of a kernel, and the arguments of its function."""
    problem = interpreted(loaded, problem_of(loaded, **words))
    inputs = loaded.inputs(problem, DEVICE, 0)
    return problem, ops.function(loaded.name).filled(inputs, loaded.arguments(problem))


def test_the_functions_are_those_of_the_page() -> None:
    """A new kernel is no function until it has an ``op.py``, and every function of the page has one."""
    page = (loading.ROOT.parent / "docs/ops.md").read_text()
    told = set(re.findall(r"^\| `(\w+)\(.*?\|", page, re.MULTILINE)) | set(re.findall(r"`, `(\w+)\(", page))
    assert told and told <= set(ops.names()) <= set(dir(ops))
    assert all(getattr(ops, name).__doc__ for name in ops.names())
    with pytest.raises(AttributeError, match=r"it has .*softmax"):
        _ = ops.no_such_kernel


@pytest.mark.parametrize(
    ("case", "words"),
    [
        *with_words(cases(lambda case: is_called(case) and not is_baseline(case)), others=OTHER_WORDS),
        *with_words(cases(lambda case: is_called(case) and is_baseline(case))),
    ],
)
def test_a_function_gives_what_its_provider_gives(
    case: Case, words: dict[str, Any], chosen: Callable[..., list[Any]]
) -> None:
    problem = case.problem(**words)
    inputs = case.inputs(problem)
    parameters = case.configuration(problem)
    case.load()
    problems = chosen(case.provider.name, parameters)
    call = getattr(ops, case.loaded.name)
    arguments = case.loaded.arguments(problem)
    for _ in range(2):  # once as it plans, once by the plan
        out = call(*inputs, **arguments)
        outputs = as_tuple(out)
        case.check(outputs, case.in_form.expected(problem, inputs), problem)
    assert problems == [problem]
    function = ops.function(case.loaded.name)
    promised = function.operator(*function.filled(inputs, arguments))
    assert all(one.stride() == function.op.laid_out(one, *inputs).stride() for one in as_tuple(promised))
    plan = function.plan(*inputs, **arguments)
    assert (plan.choice.provider, plan.choice.how) == (case.provider.name, "exact")


@pytest.mark.parametrize("loaded", OPS)
def test_the_operator_passes_opcheck(loaded: Loaded) -> None:
    function = ops.function(loaded.name)
    _, args = call_of(loaded)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    assert set(torch.library.opcheck(function.operator, args, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.parametrize("loaded", OPS)
def test_a_compiled_function_is_one_graph_and_gives_the_same(loaded: Loaded) -> None:
    call = getattr(ops, loaded.name)
    _, args = call_of(loaded)
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), call(*args), rtol=0, atol=0)


@pytest.mark.parametrize("loaded", OPS)
def test_without_data_the_answer_has_its_shape_and_dtype(loaded: Loaded) -> None:
    problem, args = call_of(loaded)
    empty = [one.to("meta") if isinstance(one, torch.Tensor) else one for one in args]
    out = getattr(ops, loaded.name)(*empty)
    outputs = as_tuple(out)
    assert [(tuple(one.shape), one.dtype) for one in outputs] == list(loaded.outputs(problem))


@pytest.mark.parametrize("loaded", OPS)
def test_warm_plans_and_says_what_was_chosen(loaded: Loaded, chosen: Callable[..., list[Any]]) -> None:
    problems = chosen(loaded.kernel.baseline, how="default")
    _, args = call_of(loaded)
    call = getattr(ops, loaded.name)
    choice = ops.warm(call, *args)
    assert choice.provider == loaded.kernel.baseline and choice.how in ("default", "torch")
    assert len(problems) == 1
    call(*args)
    assert len(problems) == 1
