"""Gradients of softmax, the norms and GELU by their kernels, where a table has times of these."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from kernel_pipeline import ops
from kernel_pipeline.contract import Gpu
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import gradients, table_files, tuned
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.ops.chooser import baseline
from pipeline import ROOT

Gradients = tuple[torch.Tensor, ...]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Case:
    """A function, torch's own, the shapes of its inputs, and the provider that computes its gradients."""

    ours: Callable[..., torch.Tensor]
    theirs: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    provider: str
    parameters: dict[str, int]

    @property
    def kernel(self) -> str:
        return f"{self.ours.__name__}_backward"

    def inputs(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randn(one, generator=generator) for one in self.shapes)
        return [one.to(DEVICE, dtype).requires_grad_() for one in drawn]


X = (2, 5, 19)
TILE = {"block_size": 32, "num_warps": 4}
PERSISTENT = {"block_size": 32, "num_warps": 4, "num_stages": 1, "per_sm": 2}
MULTI_PASS = {"block_size": 8, "num_warps": 1, "per_sm": 2}
RMSNORM = (ops.rmsnorm, lambda x, w: functional.rms_norm(x, w.shape, w, 1e-6), (X, X[-1:]))
LAYERNORM = (ops.layernorm, lambda x, w, b: functional.layer_norm(x, w.shape, w, b), (X, X[-1:], X[-1:]))
CASES = {
    "softmax": Case(ops.softmax, lambda x: torch.softmax(x, -1), (X,), "triton_tile", TILE),
    "gelu": Case(ops.gelu, lambda x: functional.gelu(x, approximate="tanh"), (X,), "triton", TILE),
    "rmsnorm": Case(*RMSNORM, "triton_persistent", PERSISTENT),
    "layernorm": Case(*LAYERNORM, "triton_persistent", PERSISTENT),
    "rmsnorm in passes": Case(*RMSNORM, "triton_multi_pass", MULTI_PASS),
    "layernorm in passes": Case(*LAYERNORM, "triton_multi_pass", MULTI_PASS),
}
NAMED = pytest.mark.parametrize("name", CASES)
ONE_EACH = pytest.mark.parametrize("name", [name for name in CASES if "passes" not in name])

By = Callable[[str], tuple[Case, list[str]]]


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> By:
    """Makes the provider of a case the choice for its gradients, as if a table had them; returns the case and
    the names of the kernels that were chosen for."""

    def plant(name: str) -> tuple[Case, list[str]]:
        case, asked = CASES[name], []

        def choose(loaded: Loaded, problem: object, gpu: object, slug: object) -> Choice:
            asked.append(loaded.name)
            if loaded.name != case.kernel:
                return baseline(loaded.kernel, "it was planted.")
            return Choice(case.provider, case.parameters, "exact", "")

        monkeypatch.setattr(tuned, "choose", choose)
        monkeypatch.setattr(gradients, "has_times", lambda *_: True)
        return case, asked

    return plant


def agree(
    case: Case,
    inputs: list[torch.Tensor],
    given: torch.Tensor | None = None,
    call: Callable[..., torch.Tensor] | None = None,
) -> None:
    """Fails unless the gradients of the inputs that need one are torch's in float64."""
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
    out, right = (call or case.ours)(*inputs), case.theirs(*exact)
    if given is None:
        given = torch.linspace(-1, 2, out.numel()).view(out.shape).to(out)
    wanted = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(out, wanted, given)
    expected = torch.autograd.grad(right, [x for x in exact if x.requires_grad], given.double())
    eps = torch.finfo(out.dtype).eps
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == out.dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=8 * eps, atol=32 * eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@NAMED
def test_a_kernel_computes_the_gradients(name: str, dtype: torch.dtype, by: By) -> None:
    case, asked = by(name)
    for _ in range(2):  # once as it plans, once by the plan
        agree(case, case.inputs(dtype))
    assert asked == [case.ours.__name__, case.kernel]


@NAMED
def test_the_outputs_gradient_has_any_layout(name: str, by: By) -> None:
    case, asked = by(name)
    for given in (
        torch.ones((), device=DEVICE).expand(X),
        torch.randn(X[-1], device=DEVICE).expand(X),
        torch.randn(X[::-1], device=DEVICE).permute(2, 1, 0),
        torch.randn(*X[:2], 2 * X[2], device=DEVICE)[..., ::2],
    ):
        agree(case, case.inputs(), given)
    agree(case, [x.transpose(0, 1) if x.dim() > 1 else x for x in case.inputs()])
    assert asked.count(case.kernel) == 5


@ONE_EACH
def test_an_input_may_need_no_gradient(name: str, by: By) -> None:
    case, asked = by(name)
    for frozen in range(1, len(case.shapes)):
        inputs = case.inputs()
        inputs[frozen].requires_grad_(False)
        agree(case, inputs)
    if len(case.shapes) > 1:
        assert case.kernel in asked
        agree(case, [x.requires_grad_(place > 0) for place, x in enumerate(case.inputs())])


@ONE_EACH
def test_a_gradient_that_is_differentiated_is_torchs(name: str, by: By) -> None:
    case, asked = by(name)
    found = []
    for call, dtype in ((case.theirs, torch.float64), (case.ours, torch.float32)):
        inputs = [x.detach().to(dtype).requires_grad_() for x in case.inputs()]
        first = torch.autograd.grad(call(*inputs).square().sum(), inputs, create_graph=True)
        assert case.kernel not in asked
        found.append(torch.autograd.grad(sum(one.square().sum() for one in first), inputs))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@ONE_EACH
def test_a_batch_of_gradients_is_torchs(name: str, by: By) -> None:
    """By ``vmap``. ``is_grads_batched`` has a form of its own, which calls the kernel for each gradient."""
    case, asked = by(name)
    inputs, given = case.inputs(), torch.randn(3, *X, device=DEVICE)
    out = case.ours(*inputs)

    def of_one(one: torch.Tensor) -> Gradients:
        return torch.autograd.grad(out, inputs, one, retain_graph=True)

    of_both = [torch.func.vmap(of_one)(given)]
    assert case.kernel not in asked
    of_both.append(torch.autograd.grad(out, inputs, given, is_grads_batched=True))
    for found in of_both:
        for place, one in enumerate(given):
            expected = torch.autograd.grad(case.theirs(*inputs), inputs, one)
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours[place], theirs, rtol=1e-5, atol=1e-5)


@ONE_EACH
def test_torch_computes_what_is_no_problem_of_the_kernel(name: str, by: By) -> None:
    case, asked = by(name)
    agree(case, case.inputs(torch.float64))
    empty = [torch.empty(0, 19, device=DEVICE, requires_grad=True), *case.inputs()[1:]]
    agree(case, empty)
    with ops.by_torch():
        agree(case, case.inputs())
    assert case.kernel not in asked


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm"])
def test_torch_computes_what_has_another_eps(name: str, by: By) -> None:
    case, asked = by(name)
    inputs = case.inputs()
    case.ours(*inputs, eps=0.5).sum().backward()
    exact = [x.detach().double().requires_grad_() for x in inputs]
    theirs = {"rmsnorm": functional.rms_norm, "layernorm": functional.layer_norm}[name]
    theirs(exact[0], X[-1:], *exact[1:], eps=0.5).sum().backward()
    for ours, right in zip(inputs, exact, strict=True):
        assert ours.grad is not None and right.grad is not None
        torch.testing.assert_close(ours.grad.double(), right.grad, rtol=1e-5, atol=1e-5)
    assert asked == []


def test_softmax_of_columns_is_torchs(by: By) -> None:
    _, asked = by("softmax")
    x = torch.randn(3, 5, device=DEVICE, requires_grad=True)
    given = torch.arange(15.0, device=DEVICE).view(3, 5)
    (found,) = torch.autograd.grad(ops.softmax(x, 0), x, given)
    (right,) = torch.autograd.grad(torch.softmax(x, 0), x, given)
    torch.testing.assert_close(found, right)
    assert asked == []


@pytest.mark.parametrize("has_times", [True, False])
@ONE_EACH
def test_a_compiled_function_has_the_kernel_if_a_table_has_it(
    name: str, has_times: bool, by: By, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's formula may be fused with its neighbours, which an operator is not."""
    case, asked = by(name)
    monkeypatch.setattr(gradients, "has_times", lambda *_: has_times)
    torch.compiler.reset()
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        agree(case, case.inputs(), call=compiled)
    assert asked == [case.ours.__name__, *([case.kernel] if has_times else [])]


@ONE_EACH
def test_without_times_torch_computes_the_gradient(
    name: str, by: By, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, asked = by(name)
    monkeypatch.setattr(gradients, "has_times", lambda *_: False)
    agree(case, case.inputs())
    assert asked == [case.ours.__name__]


@ONE_EACH
def test_opcheck_passes_where_a_kernel_computes_the_gradient(name: str, by: By) -> None:
    case, asked = by(name)
    function = ops.function(name)
    args = function.filled(tuple(case.inputs()), {})
    assert set(torch.library.opcheck(function.operator, args).values()) == {"SUCCESS"}
    assert case.kernel in asked


@ONE_EACH
def test_a_backward_pass_looks_at_what_it_is_given(name: str) -> None:
    first, *others = (x.detach() for x in CASES[name].inputs())
    call = getattr(ops, CASES[name].kernel)
    of = others[:1] if len(others) else []
    for given in (first[:, :2], first.double()):
        with pytest.raises(ValueError, match=r"^d_out must be like (x|out), \(2, 5, 19\) of torch.float32"):
            call(given, first, *of)


H200, SLUG = Gpu((9, 0), 132, 232448, 60 << 20), "nvidia-h200"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The H200's table, in which the times of the forward passes are those of the backward passes, too."""
    whole: dict[str, Any] = json.loads((ROOT / "results" / "tuned" / f"{SLUG}.json").read_text())
    for name in ("softmax", "rmsnorm", "layernorm", "gelu"):
        whole["kernels"][f"{name}_backward"] = whole["kernels"][name]
    file = tmp_path / f"{SLUG}.json"
    file.write_text(json.dumps(whole))
    monkeypatch.setenv(table_files.VARIABLE, str(tmp_path))
    return file


@ONE_EACH
def test_a_table_has_times_of_its_kernels(name: str, planted: Path) -> None:
    kernel = CASES[name].kernel
    assert gradients.has_times(kernel, H200, SLUG)
    assert gradients.has_times(kernel, H200, "nvidia-h100-80gb-hbm3"), "another GPU of its architecture"
    assert not gradients.has_times(kernel, Gpu((8, 0), 108, 166912, 40 << 20), "nvidia-a100")
    assert not gradients.has_times(kernel, None, None)
    assert not gradients.has_times("vector_sub", H200, SLUG)


@ONE_EACH
def test_an_explanation_names_the_kernel_of_the_gradient(name: str, planted: Path) -> None:
    case = CASES[name]
    inputs = [x.detach().to("meta").requires_grad_() for x in case.inputs()]
    found = ops.explain(case.ours, *inputs, gpu=SLUG)
    assert found.kernel == name and found.backward is not None
    assert found.backward.kernel == case.kernel and found.backward.problem == found.problem
    assert f"\n{case.kernel} " in str(found)
    assert ops.explain(case.ours, *(x.detach() for x in inputs), gpu=SLUG).backward is None
    with torch.no_grad():
        assert ops.explain(case.ours, *inputs, gpu=SLUG).backward is None


def test_an_explanation_names_no_kernel_for_the_weight_alone_of_rmsnorm(planted: Path) -> None:
    x, weight = (one.detach().to("meta") for one in CASES["rmsnorm"].inputs())
    weight.requires_grad_()
    assert ops.explain(ops.rmsnorm, x, weight, gpu=SLUG).backward is None
    assert ops.explain(ops.layernorm, x, weight, weight, gpu=SLUG).backward is not None
