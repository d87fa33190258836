"""``bench`` and ``check`` on all kinds of functions, on the CPU."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

import kernel_pipeline
from kernel_pipeline import BenchError, BenchResult, bench, bench_grid, check, compare, known_ceilings, shell
from kernel_pipeline.timing import stopwatch
from kernel_pipeline.timing.stopping import Stopping
from kernel_pipeline.timing.timers import Rotation, Samples
from kernel_pipeline.timing.timers.cpu import CpuTimer
from tests.processes import completed
from tests.project import ROOT


def make(seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(37, 781, generator=torch.Generator().manual_seed(seed)),)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.fixture(autouse=True)
def small_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the load of parallel tests, which would make times invalid, and let the host have a small cache:
    the inputs that a large one does not hold take seconds to make."""
    monkeypatch.setattr(known_ceilings, "BUSY", 1.0)
    monkeypatch.setattr(stopwatch, "last_level_cache", lambda device: 1 << 20)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class Kept:
    """A function that returns its own buffer at each call."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(64)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.buffer.copy_(x)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "one tensor": (torch.square, (torch.randn(64, 64),), {}),
    "keywords": (torch.softmax, (torch.randn(8, 100),), {"keywords": {"dim": -1}}),
    "other arguments": (torch.nn.functional.layer_norm, (torch.randn(8, 100), (100,)), {}),
    "several outputs": (lambda x: x.sort(dim=-1), (torch.randn(8, 100),), {}),
    "a dictionary": (lambda d: {"sum": d["x"] + d["y"]}, ({"x": torch.randn(9), "y": torch.randn(9)},), {}),
    "in place": (lambda x: x.add_(1), (torch.randn(64),), {}),
    "an output handed in": (lambda x, out: torch.square(x, out=out), (torch.randn(9), torch.randn(9)), {}),
    "random": (torch.nn.functional.dropout, (torch.randn(100, 100),), {}),
    "a module": (torch.nn.Linear(64, 32), (torch.randn(8, 64),), {}),
    "integers": (lambda x: x * 2, (torch.arange(100),), {}),
    "transposed": (torch.square, (torch.randn(64, 32).T,), {}),
    "expanded": (torch.square, (torch.randn(64, 1).expand(64, 32),), {}),
    "bfloat16": (torch.square, (torch.randn(64, 64).bfloat16(),), {}),
    "complex": (torch.square, (torch.randn(64, dtype=torch.complex64),), {}),
    "an empty tensor": (torch.square, (torch.randn(0, 4),), {}),
    "inference mode": (torch.inference_mode()(torch.square), (torch.randn(64),), {}),
    "a kept output": (Kept().__call__, (torch.randn(64),), {}),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_of_any_kind_is_timed(kind: str) -> None:
    function, inputs, options = FUNCTIONS[kind]
    before = [x.clone() for x in inputs if isinstance(x, torch.Tensor)]
    result = bench(function, *inputs, seconds=0.01, **options)
    assert result.valid, result
    assert result.interval[0] <= result.median_us <= result.interval[1]
    assert (result.timer, result.host_us) == ("perf_counter", None)
    assert all(map(torch.equal, before, [x for x in inputs if isinstance(x, torch.Tensor)]))


def sleeper(milliseconds: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        sleep(milliseconds / 1e3)
        return x * 2

    return function


def test_the_time_is_that_of_a_call() -> None:
    result = bench(sleeper(5), torch.randn(9), seconds=0.05)
    assert min(result.samples_us) > 5000 and len(result.samples_us) >= 3


def test_rates_both_caches_and_what_is_printed() -> None:
    result = bench(softmax, make=make, cache="both", bytes=2 * 37 * 781 * 4, flops=5 * 37 * 781, seconds=0.02)
    assert result.gbps == pytest.approx(2 * 37 * 781 * 4 / result.median_us / 1e3)
    assert result.tflops == pytest.approx(5 * 37 * 781 / result.median_us / 1e6)
    assert result.of_ceiling is not None and result.of_ceiling > 0
    assert result.hot is not None and result.hot.cache == "hot" and result.cache == "cold"
    assert repr(result).startswith("softmax: ") and repr(result).count("\n") == 0
    assert "<th>hot cache</th>" in result._repr_html_()


def is_noise(result: BenchResult) -> bool:
    """Whether other programs made the forward pass longer than both passes."""
    assert result.backward_us is not None
    return result.backward_us <= 0 and result.why.endswith(": measure again")


def test_the_backward_pass() -> None:
    result = bench(torch.nn.functional.gelu, torch.randn(64, 64), backward=True, seconds=0.02)
    assert result.valid or is_noise(result), result
    assert result.forward is not None and result.backward_us is not None
    assert result.backward_us == result.median_us - result.forward.median_us
    with pytest.raises(BenchError, match="no output of the function requires a gradient"):
        bench(lambda x: x > 0, torch.randn(64), backward=True)


def test_the_backward_pass_of_a_module_computes_its_weights_gradients() -> None:
    module = torch.nn.Linear(64, 32)
    seen: list[int] = []
    for weight in module.parameters():
        weight.register_hook(lambda gradient: seen.append(gradient.numel()))
    result = bench(module, torch.randn(8, 64), backward=True, seconds=0.01)
    assert result.valid or is_noise(result), result
    assert {64 * 32, 32} <= set(seen)
    assert all(weight.grad is None for weight in module.parameters())
    with torch.inference_mode(), pytest.raises(BenchError, match=r"inference_mode\(\) records none"):
        bench(module, torch.randn(8, 64), backward=True)


def test_nothing_of_the_users_is_changed() -> None:
    weight, kept = torch.randn(781), Kept()
    before = weight.clone()
    found = check(
        torch.mul, make=lambda seed: (*make(seed), weight.expand(37, 781)), reference=lambda x, w: x * w
    )
    assert found.ok and torch.equal(weight, before)
    kept.buffer.fill_(7.0)
    bench(lambda x: kept.buffer, torch.randn(64), seconds=0.01)
    assert torch.equal(kept.buffer, torch.full((64,), 7.0))
    torch.set_default_dtype(torch.float64)
    try:
        bench(softmax, make=make, bytes=8, seconds=0.01)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_sets_differ_by_seed_and_copies_are_said_to_be() -> None:
    seen = set()

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.add(float(x[0, 0]))
        return softmax(x)

    assert bench(look, make=make, seconds=0.01).notes == ()
    assert len(seen) >= 3
    (note, *_) = bench(softmax, *make(0), seconds=0.01).notes
    assert note == "the ring holds copies of the inputs given"


class Stale:
    """A function that computes three times and then returns a constant."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return softmax(x) if self.calls < 4 else torch.full_like(x, 0.5)


@pytest.mark.parametrize(
    ("function", "reference", "why"),
    [
        (lambda x: torch.softmax(1.001 * x, -1), softmax, "the output is wrong: 28"),
        (lambda x: torch.softmax(x, 0), softmax, "the output is wrong: "),
        (torch.empty_like, softmax, "the output is wrong: 28897 of 28897"),
        (Stale(), None, "the timed calls wrote another output than one call does: "),
        (lambda x: softmax(x)[:5], softmax, "the output is wrong: shape is (5, 781), not (37, 781)"),
    ],
)
def test_a_wrong_output_makes_the_time_invalid(function: Any, reference: Any, why: str) -> None:
    result = bench(function, make=make, reference=reference, seconds=0.01)
    assert not result.valid and result.why.startswith(why), result


TWO = {"square": torch.square, "abs": torch.abs}

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no inputs": (lambda: bench(torch.square), "pass either the inputs of a call or make="),
    "no tensor": (lambda: bench(torch.add, 3, 4), "none of the arguments is a tensor"),
    "nothing to see": (lambda: bench(lambda x: None, torch.randn(3)), "nothing shows that it ran"),
    "a view": (lambda: bench(lambda x: x.T, torch.randn(3, 4)), "returns an input or a view of one"),
    "another device": (lambda: bench(torch.square, torch.randn(3, device="meta")), "a CPU or an NVIDIA GPU"),
    "sparse": (lambda: bench(torch.square, torch.eye(3).to_sparse()), "only plain, dense tensors"),
    "two devices": (
        lambda: bench(torch.add, torch.randn(3), torch.randn(3, device="meta")),
        "the inputs are on cpu and meta",
    ),
    "other shapes": (
        lambda: bench(torch.square, make=lambda seed: torch.randn(3 + seed % 2)),
        "make= must give tensors of the same shapes",
    ),
    "no function": (
        lambda: bench(None, torch.randn(3)),  # type: ignore[arg-type]
        "the function is None, which can't be called",
    ),
    "no reference": (
        lambda: bench(torch.square, torch.randn(3), reference=3),  # type: ignore[arg-type]
        "reference=3: pass a function",
    ),
    "inputs in place of make": (
        lambda: compare(TWO, make=torch.ones(2)),  # type: ignore[arg-type]
        "make=tensor([1., 1.]): pass a function",
    ),
    "nothing to check": (
        lambda: check(None, make=lambda seed: torch.randn(3), reference=torch.square),  # type: ignore[arg-type]
        "function=None: pass a function",
    ),
    "one function": (lambda: compare({"a": torch.square}, torch.randn(3)), "compare takes two functions"),
    "unknown cache": (
        lambda: bench(torch.square, torch.randn(3), cache="warm"),  # type: ignore[arg-type]
        "'cold', 'hot' or 'both'",
    ),
    "one round": (
        lambda: compare({"a": torch.square, "b": torch.abs}, torch.randn(3), rounds=1),
        "two rounds or more",
    ),
    "no time": (lambda: bench(torch.square, torch.randn(3), seconds=0), "seconds=0: write a number above 0"),
    "no finite time": (
        lambda: bench_grid(lambda n, seed: torch.randn(n), sizes=[3], providers=TWO, seconds=float("nan")),
        "seconds=nan: write a number above 0",
    ),
    "one tolerance": (
        lambda: bench(torch.square, torch.randn(3), tolerance=0.1),  # type: ignore[arg-type]
        "tolerance=0.1: write a pair (rtol, atol)",
    ),
    "words of a tolerance": (
        lambda: check(
            torch.square,
            make=lambda seed: torch.randn(3),
            reference=torch.square,
            tolerance=("a", "b"),  # type: ignore[arg-type]
        ),
        "tolerance=('a', 'b'): write a pair (rtol, atol)",
    ),
    "a negative margin": (
        lambda: compare(TWO, torch.randn(3), margin=-1),
        "margin=-1: write a number from 0",
    ),
    "half a round": (
        lambda: compare(TWO, torch.randn(3), rounds=2.5),  # type: ignore[arg-type]
        "write whole numbers",
    ),
    "both caches": (
        lambda: compare(TWO, torch.randn(3), cache="both"),  # type: ignore[arg-type]
        "cache='both' is unknown: write 'cold' or 'hot'",
    ),
    "no names": (
        lambda: compare([torch.square, torch.abs], torch.randn(3)),  # type: ignore[arg-type]
        "two functions or more, by name",
    ),
    "a number for a name": (
        lambda: compare({1: torch.square, 2: torch.abs}, torch.randn(3)),  # type: ignore[dict-item]
        "the name 1 can't be used: write a non-empty string",
    ),
    "an empty name": (lambda: bench(torch.square, torch.randn(3), name=""), "the name '' can't be used"),
    "no size": (lambda: bench_grid(lambda n, seed: torch.randn(n), sizes=[], providers={}), "needs a size"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_timed_is_refused_in_a_sentence(kind: str) -> None:
    call, sentence = REFUSED[kind]
    with pytest.raises(BenchError, match=r"^[a-z]") as refused:
        call()
    assert sentence in str(refused.value) and str(refused.value).count("\n") == 0


def test_memory_that_all_calls_write_to_is_checked_after_a_whole_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay of a graph goes through all sets before an output is read."""

    class AsAGraph(CpuTimer):
        def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
            sets = range(len(rotation.inputs))
            assert len(sets) > 1
            again = lambda index: [rotation.outputs(one) for one in sets][index]  # noqa: E731
            return replace(super().measure(rotation, stop), again=again)

    monkeypatch.setattr(stopwatch, "CpuTimer", AsAGraph)
    out = torch.zeros(4096)

    def into(x: torch.Tensor) -> torch.Tensor:
        return torch.square(x, out=out)

    def make(seed: int) -> torch.Tensor:
        return torch.randn(4096, generator=torch.Generator().manual_seed(seed))

    result = bench(into, make=make, reference=torch.square, seconds=0.01)
    assert result.valid, result
    assert not bench(into, make=make, reference=torch.exp, seconds=0.01).valid


def test_what_a_function_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        bench(lambda x: x / (1 // 0), torch.randn(3))


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (softmax, ""),
        (lambda x: x.exp() / x.exp().sum(-1, keepdim=True), "large values: "),
        (lambda x: softmax(x.half().float()), "inputs of seed 0: "),
        (lambda x: softmax(x) * (x.amax() != x.amin()), "zeros: "),
        (lambda x: torch.where(x == x.sort().values, 0.1, softmax(x)), "inputs of seed 0: "),
    ],
)
def test_check_tries_several_distributions(function: Any, where: str) -> None:
    found = check(function, make=make, reference=softmax)
    assert found.ok == (where == "") and found.where.startswith(where), found
    assert len(found.cases) == 9 and (found.worst <= 1) == found.ok


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_check_takes_torchs_own_functions_and_refuses_an_approximation(dtype: torch.dtype) -> None:
    def inputs(seed: int) -> torch.Tensor:
        return torch.randn(4096, generator=torch.Generator().manual_seed(seed)).to(dtype)

    gelu = torch.nn.functional.gelu
    assert check(gelu, make=inputs, reference=gelu)
    assert not check(lambda x: gelu(x, approximate="tanh"), make=inputs, reference=gelu)


def test_integers_are_compared_exactly_and_undefined_inputs_are_left_out() -> None:
    def integers(seed: int) -> torch.Tensor:
        return torch.randint(-(2**62), 2**62, (100,), generator=torch.Generator().manual_seed(seed))

    assert check(lambda x: x + 1, make=integers, reference=lambda x: x + 1).ok
    assert not check(lambda x: x + 2, make=integers, reference=lambda x: x + 1).ok
    norm = check(lambda x: x / x.norm(), make=make, reference=lambda x: x / x.norm())
    assert norm.ok and [case.name for case in norm.cases if case.skipped] == ["zeros"]


def test_compare_says_which_is_faster() -> None:
    functions = {"short": sleeper(1), "long": sleeper(30)}
    found = compare(functions, torch.randn(9), rounds=3, most_rounds=12, seconds=0.02)
    ratio = found["long"].ratio
    assert ratio is not None and ratio.low <= ratio.ratio <= ratio.high
    assert (found["short"].verdict, found["long"].verdict) == (None, "slower")
    assert found.looks == len(found["long"].results) - 2
    assert (f"computed {found.looks} times" in found.note) == (found.looks > 1)
    heading, *rows = found.table().removesuffix(found.note).splitlines()
    assert heading.split() == ["function", "us", "x", "short", "interval", "verdict", "rounds"]
    assert [row.split()[0] for row in rows] == ["short", "long"]
    assert set(found.to_pandas()["function"]) == set(functions)


def test_a_wrong_function_gets_no_verdict() -> None:
    found = compare(
        {"right": softmax, "wrong": lambda x: 1.01 * x}, make=make, reference=softmax, rounds=2, seconds=0.01
    )
    assert found["wrong"].verdict is None and found["wrong"].why.startswith("the output is wrong")
    assert "not valid: the output is wrong" in found.table()


def test_a_grid_is_a_table_a_frame_and_a_plot() -> None:
    grid = bench_grid(
        lambda n, seed: torch.randn(n),
        sizes=[256, 1024],
        providers={"square": torch.square, "product": lambda x: x * x},
        reference=torch.square,
        bytes=lambda n: 8 * n,
        seconds=0.01,
    )
    assert grid.table().splitlines()[0].split() == ["size", "square", "[GB/s]", "product", "[GB/s]"]
    assert [line.split()[0] for line in grid.table().splitlines()[1:]] == ["256", "1024"]
    assert len(grid.to_pandas()) == 4
    import matplotlib

    matplotlib.use("Agg")
    assert [line.get_label() for line in grid.plot().lines] == ["square", "product"]


def test_the_packages_import_is_light_and_its_names_are_what_it_says() -> None:
    script = (
        "import sys, kernel_pipeline\n"
        "assert 'torch' not in sys.modules\n"
        "from kernel_pipeline import *\n"
        "heavy = {'hydra', 'dvc', 'mlflow', 'pandas', 'scipy', 'pydantic', 'pipeline', 'kernels'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = completed([sys.executable, "-c", script], cwd=ROOT, env=os.environ, check=True)
    assert done.stdout == "[]\n"
    assert all(hasattr(kernel_pipeline, name) for name in kernel_pipeline.__all__)
    with pytest.raises(AttributeError):
        _ = kernel_pipeline.nothing


def test_every_public_name_has_a_docstring_and_its_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import doctest

    for name in kernel_pipeline.__all__:
        one = getattr(kernel_pipeline, name)
        assert one.__doc__, name
    for function in (bench, bench_grid, check):
        scope = {"torch": torch, **{name: getattr(kernel_pipeline, name) for name in kernel_pipeline.__all__}}
        runner = doctest.DocTestRunner()
        for test in doctest.DocTestFinder(recurse=False).find(function, globs=scope):
            assert runner.run(test).failed == 0
    assert isinstance(bench(torch.square, torch.randn(9), seconds=0.01), BenchResult)


def _scaled(x: torch.Tensor, workspace: torch.Tensor) -> torch.Tensor:
    workspace.copy_(x)
    return x * 2


@pytest.mark.parametrize(
    ("function", "other", "reference", "why"),
    [
        (lambda x: x.relu_(), (), torch.relu, ""),
        (lambda x: (x.relu_(), None)[1], (), None, ""),
        (lambda x, y: x.add_(y), (torch.ones(64, 9),), torch.add, ""),
        (lambda x, y: x.sub_(y), (torch.ones(64, 9),), torch.add, "the output is wrong"),
        (_scaled, (torch.zeros(64, 9),), lambda x, _: x * 2, ""),
        (_scaled, (torch.zeros(64, 9),), lambda x, _: x, "the output is wrong"),
    ],
)
def test_changed_inputs_are_the_output_unless_the_function_returns_another(
    function: Callable[..., Any], other: tuple[Any, ...], reference: Callable[..., Any] | None, why: str
) -> None:
    result = bench(function, torch.randn(64, 9), *other, reference=reference, seconds=0.01)
    assert (
        "wrote another" not in result.why
        and result.why.startswith(why)
        and ("wrong" in result.why) == bool(why)
    )


def test_an_in_place_function_is_checked_also_for_inputs_that_it_leaves_as_they_are() -> None:
    found = check(lambda x: (x.relu_(), None)[1], make=lambda seed: torch.randn(9), reference=torch.relu)
    assert found.ok, found


@pytest.mark.slow
def test_a_first_look_from_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nTWO = 2\ndef square(x):\n    return x * x\ndef blind(x):\n    return None\n"
        "def wrong(x):\n    return x / (1 // 0)\ndef ends(x):\n    raise SystemExit(0)\n"
    )
    (tmp_path / "triton.py").write_text(
        "import triton.language as tl\ndef same(x):\n    return x + tl.constexpr(0).value\n"
    )
    (tmp_path / "typo.py").write_text("def square(x:\n")
    package = ("-P", "-m", "kernel_pipeline", "bench", "triton.py:same", "--shape", "9", "--device", "cpu")
    assert completed([sys.executable, *package], cwd=tmp_path).stdout.startswith("triton.py:same: ")
    first = ("bench", "mine.py:square", "--shape", "40,781", "--dtype", "bfloat16", "--device", "cpu")
    done = completed([sys.executable, "-m", "kernel_pipeline", *first, "--cache", "hot"], cwd=tmp_path)
    assert done.stderr == "" and done.stdout.startswith("mine.py:square: "), done
    monkeypatch.chdir(tmp_path)
    for words, sentence in {
        ("mine.py:cube", "--shape", "4"): "mine.py:cube: module 'mine' has no attribute 'cube'",
        ("mine.py:TWO", "--shape", "4"): "TWO is not a function",
        ("none.py:square", "--shape", "4"): "No such file",
        ("mine.py:square", "--shape", "4x5"): "--shape 4x5: write whole numbers with commas",
        ("mine.py:square", "--shape", "-4"): "--shape -4: write whole numbers with commas",
        ("mine.py:square", "--shape", "4", "--dtype", "int3"): "--dtype int3: write a floating-point dtype",
        ("mine.py:blind", "--shape", "4"): "nothing shows that it ran",
        ("mine.py:wrong", "--shape", "4"): "mine.py:8: `return x / (1 // 0)`: ZeroDivisionError",
        ("mine.py:ends", "--shape", "4"): "SystemExit: 0",
        ("mine.py:square", "--shape", "4", "--device", "tpu"): "--device tpu: write cuda or cpu",
        ("typo.py:square", "--shape", "4"): "typo.py:1: `def square(x:`: SyntaxError",
    }.items():
        code = shell.main(["--device", "cpu", *words])
        out, err = capsys.readouterr()
        assert (code, out) == (2, "") and sentence in err, err
        assert err.startswith("error: ") and err.count("\n") == 1
