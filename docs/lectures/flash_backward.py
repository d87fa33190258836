"""Attention's gradients without the matrix of probabilities: they are computed again, a block at a time."""

from __future__ import annotations

import torch

QUERIES, KEYS, DIM, BLOCK = 256, 1024, 64, 128
SCALE = DIM**-0.5

torch.manual_seed(0)
q, k, v = (torch.randn(n, DIM, dtype=torch.float64, requires_grad=True) for n in (QUERIES, KEYS, KEYS))
scores = q @ k.T * SCALE
out = torch.softmax(scores, 1) @ v
d_out = torch.randn_like(out)
expected = torch.autograd.grad(out, (q, k, v), d_out)

# All that the forward pass keeps beside its inputs and its output: a number for each query.
lse = torch.logsumexp(scores, 1, keepdim=True).detach()
q, k, v, out = (x.detach() for x in (q, k, v, out))

delta = (out * d_out).sum(1, keepdim=True)
dq = torch.zeros_like(q)
dk, dv = [], []
for keys, values in zip(k.split(BLOCK), v.split(BLOCK), strict=True):
    p = torch.exp(q @ keys.T * SCALE - lse)
    dv.append(p.T @ d_out)
    ds = p * (d_out @ values.T - delta) * SCALE
    dk.append(ds.T @ q)
    dq += ds @ keys

for name, gradient, want in zip(
    ("dq", "dk", "dv"), (dq, torch.cat(dk), torch.cat(dv)), expected, strict=True
):
    torch.testing.assert_close(gradient, want)
    print(f"{name}: as autograd's")
print(f"kept from the forward pass: {lse.numel()} numbers instead of {QUERIES * KEYS} probabilities")
print("products: 2 in the forward pass, 5 here: scores, d_out @ v.T, dv, dk, dq")
