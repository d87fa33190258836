"""The matrix product's problem: its dimensions, the least work, the tolerance, and which arithmetic a dtype
has."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Tolerance, Work, bytes_of, one_of

FLOAT8 = "float8_e4m3fn"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A product of an m by k matrix and a k by n one.

    ``layout`` is how a, then b, lies in memory: ``n`` is row-major, as its shape says, and ``t``
    column-major, the transposed of a row-major matrix. ``nt`` is a linear layer's ``x @ weight.T``. cuBLAS,
    whose matrices are column-major, calls that ``TN``.
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
"""The largest dimension that Triton's interpreter is given: two tiles of 64, the last of them in part."""

TF32_EPSILON = 2.0**-10
"""The distance from 1 to the next number of TF32."""

FAST_ACCUM_EPSILON = 2.0**-13
"""The same of the sums that Hopper's tensor cores keep of products of float8."""

FAST_ACCUM_STEP = 32
"""Products that an instruction adds to such a sum."""


def work(problem: Problem) -> Work:
    """Both inputs read once, the output written once, and a multiplication and an addition for each
    product."""
    moved = bytes_of(problem.dtype, *problem.shapes) + bytes_of(problem.output_dtype, (problem.m, problem.n))
    if problem.dtype == FLOAT8:
        moved += bytes_of("float32", (), ())  # the two scales
    arithmetic = {"tf32": "tf32", "fast_accum": "float8_fast_accum"}.get(problem.arithmetic, problem.dtype)
    return Work(moved, {arithmetic: 2 * problem.m * problem.n * problem.k})


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for inputs of about the size of standard normal
    ones. The reference uses the inputs as given, so only later roundings count; float8's are its values
    times their scale. An output is a sum of k products, about ``sqrt(k)`` large; below, eps is of the dtype
    named, and half of it the largest error of one rounding, whose root mean square is 0.2 eps. Limits are
    for the worst of 1e8 outputs, 6 standard deviations out.

    - *Sums in float32.* Added one after the other, k partial sums of size sqrt(i) are rounded, with a
      standard deviation of ``0.2 eps sqrt(1 + ... + k) = 0.15 eps k``: 0.9 eps k at the worst, doubled for
      the tensor cores, which cut where they should round. A few products are further from normal than their
      sum is, up to 25 each: 8 products more. Where one product outweighs the others, k roundings of it make
      ``0.2 eps sqrt(k)`` relative to the output: thus a relative part of ``eps sqrt(k)``.
    - *The output, rounded once*, is wrong by half an eps of its dtype relative to it; by a whole one where
      Triton's interpreter cuts float32 to bfloat16.
    - *Split k.* torch by default lets cuBLAS split k and round the parts' sums to a 16-bit output's dtype
      before it adds them: s parts of size sqrt(k / s) have together 0.2 eps sqrt(k), 1.2 eps sqrt(k) at the
      worst, and their own sums are rounded, too: ``2 eps sqrt(k)`` and another eps of the output.
    - *TF32* keeps 10 bits behind the leading one of an input; tensor cores that are given a float32 cut off
      the others. Each product then lacks up to 2 eps of TF32, 0.72 eps on average, which is relative to the
      output too; what varies about it is 0.32 eps a product, 1.9 eps sqrt(k) at the worst: thus ``2 eps``
      and ``2 eps sqrt(k)``, and 4 products more where they are few.
    - *Float8.* A product of two has 8 bits, and is exact. Hopper's tensor cores keep 13 bits behind the
      leading one of its sum (DeepSeek-V3's report, section 3.3.2), and cut off the others at each
      instruction. Where ``ieee`` is asked, sums of at most 128 products are taken out of them and added in
      float32. Each such sum, about 11 large, was cut 4 times: 0.003 on average, towards 0, and over all
      k / 128 of them ``0.0015 sqrt(k)`` at the worst, a tenth of what split k is allowed.
    - *fast_accum* leaves the sum there for all ``s = k / 32`` instructions. Each cuts off up to an eps of
      2**-13 of a partial sum whose size is ``0.8 sqrt(32 i)``: on average half of that, always towards 0, so
      that it adds up to ``k**1.5 / 60 * eps / 2``, four times that at the worst, when the sum was large all
      along. Where one product outweighs the others it is ``s eps`` relative to the output. With k = 16384
      that is 9 + 0.08 |out|: the arithmetic itself is so far off, and an error as small as a step of 32
      products that is left out does not show there.

    Of a bfloat16 at k = 16384, the widest case but that, it is 2 + 0.016 |out|, where an output is about 128.
    A step of s products that is left out changes outputs by about sqrt(s), 4 and more, and an output that
    belongs elsewhere is wrong by about 1.4 sqrt(k).
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
    """Return the reason why the dtype has no such arithmetic, or None."""
    if arithmetic == "tf32" and dtype != "float32":
        return f"tf32 is an arithmetic of float32: {dtype} is multiplied in full without it"
    if arithmetic == "fast_accum" and dtype != FLOAT8:
        return f"fast_accum is an arithmetic of {FLOAT8}: sums of {dtype} are kept in float32"
    return None
