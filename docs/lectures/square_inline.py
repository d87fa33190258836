"""The square as a CUDA kernel through load_inline: one thread per element, in blocks of 16 x 16 threads.

Needs a GPU and nvcc.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import CUDA_HOME, load_inline

DECLARATION = "torch::Tensor square_matrix(torch::Tensor matrix);"
SOURCE = """
__global__ void square_kernel(const float* matrix, float* result, int rows, int columns) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows && column < columns) {
    const float value = matrix[row * columns + column];
    result[row * columns + column] = value * value;
  }
}

torch::Tensor square_matrix(torch::Tensor matrix) {
  const int rows = matrix.size(0);
  const int columns = matrix.size(1);
  auto result = torch::empty_like(matrix);
  const dim3 threads(16, 16);
  const dim3 blocks((columns + 15) / 16, (rows + 15) / 16);
  square_kernel<<<blocks, threads>>>(matrix.data_ptr<float>(), result.data_ptr<float>(), rows, columns);
  return result;
}
"""

if CUDA_HOME is None or not torch.cuda.is_available():
    sys.exit("This script compiles CUDA and runs it: it needs an NVIDIA GPU, and nvcc of a CUDA toolkit.")
folder = Path("outputs/lectures/square_inline")
folder.mkdir(parents=True, exist_ok=True)
module = load_inline(
    "square_inline", DECLARATION, SOURCE, functions=["square_matrix"], build_directory=str(folder)
)
x = torch.randn(1823, 781, device="cuda")
torch.testing.assert_close(module.square_matrix(x), x * x)
print("square_matrix: as torch's")
print(", ".join(sorted(path.name for path in folder.iterdir() if path.suffix in (".cpp", ".cu", ".ninja"))))
