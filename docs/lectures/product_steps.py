"""The steps of a fast matrix product, compiled for an H200: how often each reads memory and shared memory."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.machine.torch_install import installed_torch

KERNELS = Path("kernels/matmul")
# The file of each step, a part of its function's name in PTX, and the side of its tile.
STEPS = {
    "cuda_tiled": ("cuda.cu", "tiledIfLi32", 32),
    "step_block_1d": ("step_block_1d.cu", "block_1dIf", 64),
    "step_block_2d": ("step_block_2d.cu", "block_2dIf", 128),
    "step_vector_loads": ("step_vector_loads.cu", "vector_loadsIf", 128),
    "step_warp_tile": ("step_warp_tile.cu", "warp_tileIf", 128),
    "step_mma": ("step_mma.cu", "mmaI", 128),
    "step_wgmma": ("step_wgmma.cu", "wgmma_ringI", 128),
}
# A thread's multiply-adds in an instruction, and the elements that it reads from shared memory. A warp's 32
# threads run ldmatrix and mma together, and 128 threads run wgmma.
MULTIPLIES = {
    r"fma\.rn\.f32": 1,
    r"mma\.sync\.aligned\.m16n8k16": 16 * 8 * 16 / 32,
    r"wgmma\.mma_async\.sync\.aligned\.m64n128k16": 64 * 128 * 16 / 128,
}
READS = {
    r"ld\.shared\.f32": 1,
    r"ld\.shared\.v4\.f32": 4,
    r"ldmatrix\.sync\.aligned\.m8n8\.x4": 4 * 8 * 8 / 32,
    r"wgmma\.mma_async\.sync\.aligned\.m64n128k16": (64 * 16 + 16 * 128) / 128,
}


def ptx(source: str) -> str:
    """The PTX that nvcc makes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.ptx")
        words: list[str | Path] = ["-std=c++17", "-O3", "-DUSE_CUDA", "-arch=compute_90a", "-ptx", "-o", made]
        headers: list[str | Path] = [
            "-isystem",
            installed_torch().folder / "include",
            "-DTORCH_TARGET_VERSION=0x020a000000000000",
        ]
        subprocess.run([find_nvcc().path, *words, *headers, KERNELS / source], check=True)
        return made.read_text()


def count(text: str, values: dict[str, float]) -> tuple[int, float]:
    """How many of these instructions are in a text, and the sum of their values."""
    found = {name: len(re.findall(rf"\s{name}\b", text)) for name in values}
    return sum(found.values()), sum(number * values[name] for name, number in found.items())


with ThreadPoolExecutor(os.cpu_count()) as pool:
    compiled = dict(zip(STEPS, pool.map(ptx, [source for source, *_ in STEPS.values()]), strict=True))
print("step               threads   from memory   from shared memory   instructions for it")
for step, (_, name, tile) in STEPS.items():
    function = next(one for one in compiled[step].split(".entry ")[1:] if name in one[: one.index("(")])
    threads = re.findall(r"\.maxntid (\d+)", function)[0]
    multiply_adds = count(function, MULTIPLIES)[1]
    instructions, elements = count(function, READS)
    print(
        f"{step:17}{threads:>9}{2 / tile:14.4f}{elements / multiply_adds:21.4f}"
        f"{instructions / multiply_adds:22.4f}"
    )
