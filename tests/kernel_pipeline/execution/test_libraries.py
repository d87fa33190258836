"""Libraries that are built while other things go on. The compiler is planted; that it is real is tested with
the extension's own tests."""

from collections.abc import Sequence

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.compile_pool import Ahead, Compilers, Libraries
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from pipeline.points import plan as plans
from pipeline.points.catalog import find

MATMUL, SOFTMAX = loading.load("matmul"), loading.load("softmax")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """What compilers were asked for; ``broken.cu`` does not compile."""
    found: list[tuple[str, tuple[str, ...]]] = []

    def build(place: Place, sources: Sequence[str]) -> None:
        found.append((place.name, tuple(sources)))
        if "broken.cu" in sources:
            raise UserError("broken.cu does not compile")

    monkeypatch.setattr(extension, "build", build)
    return found


def test_a_source_is_built_once_and_with_the_others_of_its_kernel(built: list[object]) -> None:
    with Libraries(gives_way=False) as libraries:
        first = libraries.submit(MATMUL, ["cuda.cu", "gemv.cu"])
        again = libraries.submit(MATMUL, ["gemv.cu", "wgmma.cu"])
        other = libraries.submit(SOFTMAX, ["cuda.cu"])
        libraries.wait()
        assert again["gemv.cu"] is first["gemv.cu"] and other["cuda.cu"] is not first["cuda.cu"]
        assert all(one.result() is None for one in (*first.values(), *again.values(), *other.values()))
    assert sorted(map(str, built)) == sorted(
        map(str, [("matmul", ("cuda.cu", "gemv.cu")), ("matmul", ("wgmma.cu",)), ("softmax", ("cuda.cu",))])
    )


def test_of_several_that_fail_together_only_the_broken_one_fails(built: list[object]) -> None:
    with Libraries(gives_way=False) as libraries:
        found = libraries.submit(MATMUL, ["cuda.cu", "broken.cu", "gemv.cu"])
        libraries.wait()
    assert [str(future.exception() or "") for future in found.values()] == [
        "",
        "broken.cu does not compile",
        "",
    ]


def points(kernel: str, *providers: str) -> list[Point]:
    gpu = Gpu((9, 0), 132, 232448, 50 << 20)
    target = plans.Target("cuda", gpu)
    return list(plans.plan(find(kernel), "smoke", target, providers=list(providers)).points)


def test_points_of_a_library_wait_for_it_and_others_of_nothing(built: list[object]) -> None:
    cuda, torch = points("softmax", "cuda"), points("softmax", "torch")
    with Compilers(None) as compilers:
        ahead = Ahead(SOFTMAX, compilers)
        ahead.begin([*cuda, *torch])
        ahead.submit([*cuda, *torch])
        compilers.wait()
        assert set(ahead.futures) == set(cuda)
        assert not any(map(ahead.is_of, cuda)), "a point has no compilation of its own"
        assert all(future.done() for future in ahead.futures.values())
    assert built == [("softmax", ("cuda.cu",))]
