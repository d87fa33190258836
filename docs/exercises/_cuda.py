"""Run CUDA C++ on a CPU, or on a GPU where there is one.

On a CPU the C++ compiler takes the source after a header that stands in for CUDA: the blocks run one after
the other, and the threads of a block are threads of the CPU that meet at ``__syncthreads``.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernel_pipeline.machine.fingerprint import find_cxx, find_nvcc

HEADER = r"""
#ifdef __CUDACC__
#define LAUNCH(kernel, blocks, threads, ...) \
  do { kernel<<<blocks, threads>>>(__VA_ARGS__); cudaDeviceSynchronize(); } while (0)
#else
#include <barrier>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __restrict__
#define __shared__ static
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(16) float4 { float x, y, z, w; };
static thread_local dim3 threadIdx;
static dim3 blockIdx, blockDim, gridDim;
static std::barrier<>* all_threads;
inline void __syncthreads() { all_threads->arrive_and_wait(); }
#define LAUNCH(kernel, blocks, threads, ...) launch(blocks, threads, [&] { kernel(__VA_ARGS__); })
template <class Body> void launch(unsigned blocks, unsigned count, Body body) {
  gridDim.x = blocks;
  blockDim.x = count;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    std::barrier<> meeting(count);
    all_threads = &meeting;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i)
      threads.emplace_back([&, i] { threadIdx.x = i; body(); meeting.arrive_and_drop(); });
    for (auto& one : threads) one.join();
  }
}
#endif
#line 1
"""


def run(source: str, *arguments: Any) -> None:
    """Call the source's ``extern "C" void run(...)``. Tensors become pointers, integers ``int``. Raises
    ValueError with the compiler's first error."""
    given = [
        ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else ctypes.c_int(one)
        for one in arguments
    ]
    on_gpu = any(isinstance(one, torch.Tensor) and one.is_cuda for one in arguments)
    _library(source, on_gpu).run(*given)


@functools.cache
def _library(source: str, for_gpu: bool) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "exercise.so")
        words: list[str | Path]
        if for_gpu:
            words = [find_nvcc().path, "-arch=native", "-Xcompiler", "-fPIC"]
        else:
            words = [find_cxx().path, "-fPIC", "-pthread"]
        _compile([*words, "-std=c++20", "-O1", "-shared", "-o", library], source, "cu" if for_gpu else "cpp")
        return ctypes.CDLL(str(library))


def ptx(source: str, capability: int) -> str:
    """Return the PTX that nvcc makes. Raises ValueError with the compiler's first error."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "exercise.ptx")
        words: list[str | Path] = [
            find_nvcc().path,
            f"-arch=compute_{capability}",
            "-std=c++20",
            "-O3",
            "-ptx",
            "-o",
            made,
        ]
        _compile(words, source, "cu")
        return made.read_text()


def _compile(words: list[str | Path], source: str, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"exercise.{suffix}")
        file.write_text(HEADER + source)
        done = subprocess.run([*words, file], capture_output=True, text=True, check=False)
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
        # g++ writes FILE:LINE:COLUMN, nvcc FILE(LINE).
        said = re.sub(r"^.*exercise\.\w+[:(](\d+)(?:\)|:\d+)", r"SOURCE, line \1", error)
        raise ValueError(f"the compiler says {said}")
