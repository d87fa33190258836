"""The matrix product's problem: its dimensions, the least work, the tolerance, and the arithmetic of each
dtype."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Tolerance, Work, bytes_of, one_of

FLOAT8 = "float8_e4m3fn"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and a k by n matrix.

    ``layout`` has the memory layouts of a and b: ``n`` is row-major, ``t`` is column-major, which is the
    transpose of a row-major matrix. ``nt`` is a linear layer's ``x @ weight.T``. cuBLAS, whose matrices are
    column-major, calls it ``TN``.
    """

    m: int
    n: int
    k: int
    dtype: str = one_of("bfloat16", "float16", "float32", FLOAT8)
    arithmetic: str = one_of("ieee", "tf32", "fast_accum")
    layout: str = one_of("nn", "nt", "tn", "tt", omit_default=True)

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of a and of b."""
        return (self.m, self.k), (self.k, self.n)

    @property
    def output_dtype(self) -> str:
        """The dtype of the inputs; bfloat16 for float8."""
        return "bfloat16" if self.dtype == FLOAT8 else self.dtype


MOST_INTERPRETED = 96
"""The largest dimension for Triton's interpreter: two tiles of 64, the second only partly full."""

TF32_EPSILON = 2.0**-10
"""The distance from 1 to the next TF32 number."""

FAST_ACCUM_EPSILON = 2.0**-13
"""The distance from 1 to the next number in the sums of float8 products in Hopper's tensor cores."""

FAST_ACCUM_STEP = 32
"""Float8 products that one instruction adds to such a sum."""


def work(problem: Problem) -> Work:
    """Return the least work: both inputs read once, the output written once, and a multiplication and an
    addition for each product."""
    moved = bytes_of(problem.dtype, *problem.shapes) + bytes_of(problem.output_dtype, (problem.m, problem.n))
    if problem.dtype == FLOAT8:
        moved += bytes_of("float32", (), ())  # the two scales
    arithmetic = {"tf32": "tf32", "fast_accum": "float8_fast_accum"}.get(problem.arithmetic, problem.dtype)
    return Work(moved, {arithmetic: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for inputs as large as standard normal values.

    The reference uses the inputs as given (float8 values times their scale), so only later roundings add
    errors. An output is a sum of k products, about ``sqrt(k)`` large. Below, eps belongs to the dtype named:
    one rounding is wrong by at most eps / 2, with a root mean square of 0.2 eps. The limits hold for the
    worst of 1e8 outputs, 6 standard deviations out.

    - *Sums in float32.* Products are added one after the other: k partial sums of size sqrt(i) are rounded,
      with a standard deviation of ``0.2 eps sqrt(1 + ... + k) = 0.15 eps k``. At the worst that is 0.9 eps k,
      doubled because the tensor cores truncate instead of rounding. A few products are further from normal
      than a long sum, up to 25 each: the limit allows 8 products more. Where one product outweighs the
      others, k roundings of it make ``0.2 eps sqrt(k)`` relative to the output: hence a relative part of
      ``eps sqrt(k)``.
    - *The output* is rounded once, by at most half an eps of its dtype; by a whole eps where Triton's
      interpreter truncates float32 to bfloat16.
    - *Split k.* By default torch lets cuBLAS split k and round the parts' sums to a 16-bit output's dtype
      before it adds them. The errors of s parts of size sqrt(k / s) add up to 0.2 eps sqrt(k), 1.2 eps
      sqrt(k) at the worst, and the sums of parts are rounded too: ``2 eps sqrt(k)`` and another eps of the
      output.
    - *TF32* keeps 10 bits behind the leading one of an input; tensor cores that are given a float32 truncate
      the rest. Each product is then too small by up to 2 eps of TF32. The average, 0.72 eps, is relative to
      the output too; the variation is 0.32 eps per product, 1.9 eps sqrt(k) at the worst. Hence ``2 eps`` and
      ``2 eps sqrt(k)``, with 4 products more for a small k.
    - *Float8.* A product of two float8 numbers has 8 bits and is exact. Hopper's tensor cores keep 13 bits
      behind the leading one of a sum (DeepSeek-V3's report, section 3.3.2), and truncate it at each
      instruction. ``ieee`` takes sums of at most 128 products out of the tensor cores and adds them in
      float32. Each such sum, about 11 large, was truncated 4 times: by 0.003 on average, towards 0, and over
      all k / 128 sums by ``0.0015 sqrt(k)`` at the worst, a tenth of the allowance for split k.
    - *fast_accum* leaves the sum in the tensor cores for all ``s = k / 32`` instructions. Each truncates a
      partial sum of size ``0.8 sqrt(32 i)`` by up to an eps of 2**-13: on average by half of that, always
      towards 0. This adds up to ``k**1.5 / 60 * eps / 2``, and to four times that at the worst, when the sum
      was large all along. Where one product outweighs the others the error is ``s eps`` relative to the
      output. With k = 16384 the limit is 9 + 0.08 |out|: the arithmetic itself is that inaccurate, and a
      missing step of 32 products does not show.

    The widest limit apart from fast_accum is for bfloat16 at k = 16384: 2 + 0.016 |out|, where an output is
    about 128. A missing step of s products changes outputs by about sqrt(s), 4 and more, and an output stored
    in the wrong place is wrong by about 1.4 sqrt(k).
    """
    root = math.sqrt(problem.k)
    single = EPSILON["float32"]
    rtol = single * (1 + root)
    atol = 2 * single * (problem.k + 8)
    if problem.arithmetic == "tf32":
        return Tolerance(rtol + 2 * TF32_EPSILON, atol + 2 * TF32_EPSILON * (root + 4))
    if problem.dtype != "float32":
        eps = EPSILON[problem.output_dtype]
        rtol, atol = rtol + 2 * eps, atol + 2 * eps * root
    if problem.arithmetic == "fast_accum":
        steps = problem.k / FAST_ACCUM_STEP
        rtol += FAST_ACCUM_EPSILON * (steps + 1)
        atol += FAST_ACCUM_EPSILON * 2 * problem.k * root / 60
    return Tolerance(rtol, atol)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter; odd dimensions stay odd."""
    m, n, k = (
        value if value <= MOST_INTERPRETED else MOST_INTERPRETED + value % 2
        for value in (problem.m, problem.n, problem.k)
    )
    return dataclasses.replace(problem, m=m, n=n, k=k)


def refused(dtype: str, arithmetic: str) -> str | None:
    """Return the reason why the dtype does not have the arithmetic, or None."""
    if arithmetic == "tf32" and dtype != "float32":
        return f"tf32 is an arithmetic of float32: {dtype} is multiplied in full without it"
    if arithmetic == "fast_accum" and dtype != FLOAT8:
        return f"fast_accum is an arithmetic of {FLOAT8}: sums of {dtype} are kept in float32"
    return None
