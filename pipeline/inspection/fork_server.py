"""What the process holds that programs.py forks its compilers from: torch and Triton, imported once for all.

It is imported there alone, by multiprocessing's fork server. No interpreter, no CUDA context.
"""

from __future__ import annotations

import os

from pipeline.machine.reaper import INTERPRETERS

os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Read as Triton's own functions are imported.
for name in INTERPRETERS:
    os.environ.pop(name, None)

import torch  # noqa: E402, F401
import triton.compiler.code_generator  # noqa: E402, F401
