"""Products of groups of rows with a weight for each group, and a bias that only some problems have; and the
sum of each group.

A dimension that is a list, named inputs with a list of tensors and one that may be None, and outputs with a
list of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Groups:
    m: tuple[int, ...]
    n: int
    k: int = 4
    dtype: str = one_of("float32")
    biased: bool = False


def work(problem: Groups) -> Work:
    rows, n, k = sum(problem.m), problem.n, problem.k
    shapes = [(rows, k), (len(problem.m), k, n), (n * problem.biased,), (rows, n), (len(problem.m),)]
    return Work(bytes_of(problem.dtype, *shapes), {problem.dtype: 2 * rows * n * k})


def tolerance(problem: Groups) -> Tolerance:
    return Tolerance(rtol=1e-4, atol=1e-4)


kernel = Kernel(
    problem=Groups,
    size=("n",),
    work=work,
    tolerance=tolerance,
    arguments=("m",),
    headline="tflops",
    providers=(
        Provider("torch", "torch.py:products"),
        Provider("compiled", "torch.py:products", compiled=True),
        Provider("first_weight_for_all", "torch.py:first_weight_for_all"),
        Provider("never_biased", "torch.py:never_biased"),
        Provider("a_group_short", "torch.py:a_group_short"),
    ),
)
