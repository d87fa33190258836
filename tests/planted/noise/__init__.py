"""A vector with noise that follows a seed: ``values + uniform(seed)``, where the seed is a dimension. The
dimension of its length is called x, as the axis of a workload is in YAML."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, at_least, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Noise:
    x: int
    noise_seed: int = at_least(0)
    dtype: str = one_of("float32")


def work(problem: Noise) -> Work:
    return Work(bytes_of(problem.dtype, (problem.x,), (problem.x,)), {problem.dtype: problem.x})


def tolerance(problem: Noise) -> Tolerance:
    del problem
    return Tolerance(rtol=1e-6, atol=1e-6)


kernel = Kernel(
    problem=Noise,
    size=("x",),
    work=work,
    tolerance=tolerance,
    arguments={"seed": "noise_seed"},
    providers=(Provider("torch", "torch.py:noisy"), Provider("unseeded", "torch.py:unseeded")),
)
