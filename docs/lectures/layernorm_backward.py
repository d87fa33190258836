"""Layernorm's backward pass in Triton: dx row by row, dw and db as partial sums of each program.

TRITON_INTERPRET=1 runs it in Python, on any host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, PROGRAMS, EPS = 64, 100, 4, 1e-5


@triton.jit
def _forward(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out, mean_of, rstd_of, x, w, b, columns, eps, BLOCK: tl.constexpr
):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    scaled = centred * rstd * tl.load(w + column, mask=inside) + tl.load(b + column, mask=inside)
    tl.store(out + row * columns + column, scaled, mask=inside)
    tl.store(mean_of + row, mean)
    tl.store(rstd_of + row, rstd)


@triton.jit
def _backward(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    dx, dw, db, d_out, mean_of, rstd_of, x, w, rows, columns, BLOCK: tl.constexpr
):
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    weight = tl.load(w + column, mask=inside, other=0.0)
    dw_sum, db_sum = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        gradient = tl.load(d_out + row * columns + column, mask=inside, other=0.0)
        values = tl.load(x + row * columns + column, mask=inside, other=0.0)
        rstd = tl.load(rstd_of + row)
        normed = tl.where(inside, (values - tl.load(mean_of + row)) * rstd, 0.0)
        weighted = gradient * weight
        along = tl.sum(weighted * normed, axis=0) / columns
        result = rstd * (weighted - tl.sum(weighted, axis=0) / columns - normed * along)
        tl.store(dx + row * columns + column, result, mask=inside)
        dw_sum += gradient * normed
        db_sum += gradient
    tl.store(dw + program * columns + column, dw_sum, mask=inside)
    tl.store(db + program * columns + column, db_sum, mask=inside)


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(ROWS, COLUMNS, device=device, requires_grad=True)
w, b = (torch.randn(COLUMNS, device=device, requires_grad=True) for _ in range(2))
expected = torch.nn.functional.layer_norm(x, (COLUMNS,), w, b, EPS)
d_out = torch.randn_like(expected)
gradients = torch.autograd.grad(expected, (x, w, b), d_out)
x, w, b = (one.detach() for one in (x, w, b))

out, dx = torch.empty_like(x), torch.empty_like(x)
mean, rstd = torch.empty(2, ROWS, device=device)
dw, db = torch.empty(2, PROGRAMS, COLUMNS, device=device)
block = triton.next_power_of_2(COLUMNS)
_forward[(ROWS,)](out, mean, rstd, x, w, b, COLUMNS, EPS, BLOCK=block)
_backward[(PROGRAMS,)](dx, dw, db, d_out, mean, rstd, x, w, ROWS, COLUMNS, BLOCK=block)
torch.testing.assert_close(out, expected.detach(), rtol=1e-4, atol=1e-4)
print("out: as torch's")
for name, found, want in zip(("dx", "dw", "db"), (dx, dw.sum(0), db.sum(0)), gradients, strict=True):
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)
    print(f"{name}: as autograd's")
print(f"kept from the forward pass: {mean.numel() + rstd.numel()} numbers, for {x.numel()} of x")
print(f"dw and db: {PROGRAMS} partial sums of {ROWS // PROGRAMS} rows each")
