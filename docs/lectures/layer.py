"""A layer, compiled as a whole: how many graphs and kernels torch.compile makes of it."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch.nn import functional


class Layer(nn.Module):
    """RMSNorm, a linear layer, GELU, a linear layer, and the sum with the input."""

    def __init__(self, hidden: int, chatty: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)
        self.chatty = chatty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output, in x's shape."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
        wide = functional.gelu(self.up(normed), approximate="tanh")
        if self.chatty:
            print("largest:", round(wide.max().item(), 2))
        return x + self.down(wide)


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
layer = Layer(128, chatty=sys.argv[1:] == ["print"]).to(device).eval()
x = torch.randn(64, 128, device=device)
with torch.no_grad(), torch.profiler.profile() as profiler:
    eager = layer(x)
called = [one for one in profiler.events() if one.name.startswith("aten::") and one.cpu_parent is None]
print(f"eager: {len(called)} operators")
with torch.no_grad():
    compiled = torch.compile(layer)(x)
torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)
graphs, kernels = counters["stats"]["unique_graphs"], metrics.generated_kernel_count
print(f"compiled: {graphs} graphs, {kernels} generated kernels")
