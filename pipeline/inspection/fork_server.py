"""What the process holds that programs.py forks its compilers from: torch and Triton, imported once for all.

It is imported there alone, by multiprocessing's fork server. No interpreter, no CUDA context.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Read as Triton's own functions are imported.
os.environ.pop("TRITON_INTERPRET", None)

import torch  # noqa: F401
import triton.compiler.code_generator  # noqa: F401
