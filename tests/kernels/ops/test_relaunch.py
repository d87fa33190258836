"""A Triton call is repeated from its record. A stand-in for a compiled kernel works on addresses, as launches
do; tests/gpu/test_ops.py has the real ones."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_pipeline.execution import launch_recorder
from kernel_pipeline.ops import relaunch

Report = Callable[[Any, Any, dict[str, Any]], None]


class Doubles:
    """A compiled kernel that writes ``factor * x``, and keeps what it was launched with."""

    packed_metadata, function = "metadata", "function"

    def __init__(self) -> None:
        names = ("out", "x", "numbers", "FACTOR")
        parameters = [SimpleNamespace(name=name, is_constexpr=name.isupper(), default=None) for name in names]
        self.src = SimpleNamespace(fn=SimpleNamespace(params=parameters))
        self.launches: list[tuple[Any, ...]] = []

    def run(self, *given: Any) -> None:
        self.launches.append(given[:6])
        out, x, numbers, factor = given[9:]
        of = (ctypes.c_float * numbers).from_address(x)
        (ctypes.c_float * numbers).from_address(out)[:] = [factor * one for one in of]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Launches a compiled kernel as an entry does, seen by what records."""
    reports: list[Report] = []

    @contextmanager
    def seen(report: Report) -> Iterator[None]:
        reports.append(report)
        yield
        reports.remove(report)

    monkeypatch.setattr(launch_recorder, "triton_launches", seen)

    def launch(compiled: Doubles, grid: Any, **arguments: Any) -> None:
        values = [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in arguments.values()]
        compiled.run(*grid, *(1,) * (3 - len(grid)), 0, "function", "metadata", None, None, None, *values)
        for report in reports:
            report(compiled, grid, arguments)

    return launch


def repeat_of(
    entry: Callable[..., Any], *args: torch.Tensor
) -> tuple[Callable[..., Any] | None, list[torch.Tensor]]:
    """Record a call, and return the function that repeats it, and the tensors that it left to others."""
    left: list[torch.Tensor] = []

    def otherwise(*given: torch.Tensor) -> torch.Tensor:
        left.extend(given)
        return entry(*given)

    with relaunch.recorded() as record:
        out = entry(*args)
    return relaunch.repeated(record, args, out, otherwise, lambda: 7), left


@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (48,)], ids=str)
def test_later_calls_launch_what_the_first_launched(
    launch: Callable[..., None], shape: tuple[int, ...]
) -> None:
    compiled = Doubles()

    def entry(x: torch.Tensor) -> torch.Tensor:
        rows = x.view(-1, 8)
        out = torch.empty_like(rows)
        launch(compiled, (5,), out=out, x=rows, numbers=48, FACTOR=3.0)
        return out.view(x.shape)

    repeat, left = repeat_of(entry, torch.randn(shape))
    assert repeat is not None
    for _ in range(3):
        x = torch.randn(shape)
        out = repeat(x)
        assert torch.equal(out, 3 * x) and out.shape == x.shape and out.is_contiguous()
    assert compiled.launches[1:] == [(5, 1, 1, 7, "function", "metadata")] * 3 and not left
    unaligned = torch.randn(49)[1:].view(shape)
    assert torch.equal(repeat(unaligned), 3 * unaligned)
    assert left[0] is unaligned, "Triton compiled the kernel for aligned addresses"


def test_a_kernel_for_any_address_takes_all(launch: Callable[..., None]) -> None:
    def entry(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(4)
        launch(Doubles(), (1, 2), out=out, x=x, numbers=4, FACTOR=2.0)
        return out

    repeat, left = repeat_of(entry, torch.randn(5)[1:])
    assert repeat is not None
    for x in (torch.randn(4), torch.randn(5)[1:]):
        assert torch.equal(repeat(x), 2 * x)
    assert not left


def test_rows_of_a_wider_matrix_and_two_launches_through_a_workspace(launch: Callable[..., None]) -> None:
    """Two outputs, one in another dtype's place, and a workspace that the call drops."""

    def entry(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        workspace, out, others = torch.empty(8), x.new_empty(8), torch.empty_strided((2, 2), (1, 2))
        launch(Doubles(), (1,), out=workspace, x=x[1, 2:], numbers=8, FACTOR=2.0)
        launch(Doubles(), (1,), out=out, x=workspace, numbers=8, FACTOR=5.0)
        launch(Doubles(), (1,), out=others, x=y, numbers=4, FACTOR=1.0)
        return out, others

    assert repeat_of(entry, torch.randn(2, 16)[:, 2:14], torch.randn(4))[0] is None, "less aligned than x"
    repeat, left = repeat_of(entry, torch.randn(2, 14)[:, :12], torch.randn(4))
    assert repeat is not None
    x, y = torch.randn(2, 14)[:, :12], torch.randn(4)
    out, others = repeat(x, y)
    assert torch.equal(out, 10 * x[1, 2:10]) and torch.equal(others, y.view(2, 2).mT) and not left


def test_what_else_a_call_does_is_not_repeated(launch: Callable[..., None]) -> None:
    elsewhere = torch.randn(4)

    def computes(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launch(Doubles(), (1,), out=out, x=x + 1, numbers=4, FACTOR=2.0)
        return out

    def takes_another(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launch(Doubles(), (1,), out=out, x=elsewhere, numbers=4, FACTOR=2.0)
        return out

    def returns_a_part(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(2, 4)
        launch(Doubles(), (1,), out=out, x=x, numbers=4, FACTOR=2.0)
        return out[0]

    def launches_nothing(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    for entry in (computes, takes_another, returns_a_part, launches_nothing):
        assert repeat_of(entry, torch.randn(4))[0] is None, entry.__name__


def test_tensors_that_share_memory_and_launches_of_other_threads(launch: Callable[..., None]) -> None:
    def entry(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        other = Thread(target=launch, args=(Doubles(), (9,)), kwargs=kernel(torch.empty(4), y))
        other.start()
        other.join()
        out = torch.empty_like(x)
        launch(Doubles(), (1,), **kernel(out, x))
        return out

    def kernel(out: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
        return {"out": out, "x": x, "numbers": 4, "FACTOR": 2.0}

    x, y = torch.randn(4), torch.randn(4)
    assert repeat_of(entry, x, x)[0] is None
    repeat, _ = repeat_of(entry, x, y)
    assert repeat is not None and torch.equal(repeat(y, x), 2 * y)
