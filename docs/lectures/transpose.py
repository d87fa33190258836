"""A transpose is a view. What torch.compile makes of it in four functions, on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code

x, y = torch.randn(1024, 2048), torch.randn(2048, 1024)


def view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The view itself."""
    return y.t()


def doubled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An operation on single elements of the view."""
    return 2 * y.t()


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A sum of two orders of elements."""
    return x + y.t()


def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same sum with a copy."""
    return x + y.t().contiguous()


for title, one in (("y.t()", y.t()), ("y.t().contiguous()", y.t().contiguous())):
    shares = "y's memory" if one.data_ptr() == y.data_ptr() else "memory of its own"
    print(f"{title:20}strides {one.stride()!s:12}{shares}")

print("function  kernels  strides of the result  transposed inside")
functions: tuple[Callable[..., torch.Tensor], ...] = (view, doubled, added, copied)
for function in functions:
    metrics.reset()
    torch.compiler.reset()
    result, code = run_and_get_code(torch.compile(function), x, y)
    torch.testing.assert_close(result, function(x, y))
    inside = "yes" if "transpose_mxn<" in "".join(code) else "no"
    print(f"{function.__name__:10}{metrics.generated_kernel_count:7}  {result.stride()!s:>21}{inside:>19}")
