"""Show how Triton's compiler treats print and breakpoint. It compiles for a GPU on any host."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError


@triton.jit
def _prints(out, x, BLOCK_SIZE: tl.constexpr):
    offset = tl.arange(0, BLOCK_SIZE)
    values = tl.load(x + offset)
    print(values)
    tl.store(out + offset, values * values)


@triton.jit
def _stops(out, x, BLOCK_SIZE: tl.constexpr):
    offset = tl.arange(0, BLOCK_SIZE)
    values = tl.load(x + offset)
    breakpoint()
    tl.store(out + offset, values * values)


@triton.jit
def _says(out, x, BLOCK_SIZE: tl.constexpr):
    offset = tl.arange(0, BLOCK_SIZE)
    values = tl.load(x + offset)
    tl.static_print("while compiling:", values)
    tl.device_print("on the GPU:", values)
    tl.store(out + offset, values * values)


def compiled(function: triton.JITFunction) -> str:
    """A kernel's PTX for compute capability 9.0."""
    source = ASTSource(
        function,
        {"out": "*fp32", "x": "*fp32", "BLOCK_SIZE": "constexpr"},
        constexprs={"BLOCK_SIZE": 128},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


# Triton would find an earlier compilation in its cache, and static_print would print nothing.
triton.knobs.compilation.always_compile = True
for function in (_prints, _stops):
    try:
        compiled(function)
    except CompilationError as error:
        print(f"{function.__name__}: {str(error).splitlines()[-1]}")
print(f"_says: vprintf is called {compiled(_says).count('vprintf,')} times in the PTX")
