"""Scale and add with loads of 16 bytes.

y = factor * x + y. A float4 is four floats, and a thread loads it in one instruction of 16 bytes: fewer
instructions for the same bytes. The length may not be a multiple of 4: the last one to three elements are
done one by one.
"""

from __future__ import annotations

import torch

from docs.exercises._cuda import run

SOURCE = r"""
__global__ void axpy(float* y, const float* x, int factor, int elements) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int quads = elements / 4;
  // YOURS: thread i < quads does float4 number i; the first threads after them do the rest.
  if (i < quads) {
    const float4 a = reinterpret_cast<const float4*>(x)[i];
    float4 b = reinterpret_cast<float4*>(y)[i];
    b.x += factor * a.x;
    b.y += factor * a.y;
    b.z += factor * a.z;
    b.w += factor * a.w;
    reinterpret_cast<float4*>(y)[i] = b;
  } else {
    const int rest = 4 * quads + (i - quads);
    if (rest < elements) y[rest] += factor * x[rest];
  }
  // END
}

extern "C" void run(float* y, const float* x, int factor, int elements) {
  LAUNCH(axpy, (elements / 4 + 3 + 63) / 64, 64, y, x, factor, elements);
}
"""


def yours(x: torch.Tensor, y: torch.Tensor, factor: int) -> torch.Tensor:
    """Compile the source, and call it on a copy of y."""
    out = y.clone()
    run(SOURCE, out, x, factor, x.numel())
    return out


def expected(x: torch.Tensor, y: torch.Tensor, factor: int) -> torch.Tensor:
    """The sum in float64."""
    return factor * x.double() + y.double()


def cases():
    """Whole float4, and a rest of one and of three."""
    for elements in (256, 257, 515):
        yield torch.randn(elements), torch.randn(elements), 3


TOPIC, STEP = "CUDA C++", 1

MISTAKE = """
if (i < quads) {
  const float4 a = reinterpret_cast<const float4*>(x)[i];
  float4 b = reinterpret_cast<float4*>(y)[i];
  b.x += factor * a.x;
  b.y += factor * a.y;
  b.z += factor * a.z;
  b.w += factor * a.w;
  reinterpret_cast<float4*>(y)[i] = b;
}
"""

HINTS = (
    "reinterpret_cast<const float4*>(x)[i] is x[4 * i] to x[4 * i + 3], in one load.",
    "A float4 has members x, y, z and w. Change a copy, and store it whole.",
    "The rest begins at element 4 * quads. Thread quads + r does element 4 * quads + r, if there is one.",
)
