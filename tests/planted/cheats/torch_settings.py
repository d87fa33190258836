"""An honest provider that leaves settings behind which disturb others."""

from __future__ import annotations

import gc
import os
import random
import signal

import torch

from .torch_honest import LEFT_THREADS, LEFT_VARIABLE


def leaves_settings(x: torch.Tensor) -> torch.Tensor:
    """Each of these changes what later providers compute, or how fast."""
    out = torch.sinc(x)
    torch.set_num_threads(LEFT_THREADS)
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.bfloat16)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    os.environ[LEFT_VARIABLE] = "1"
    random.seed(61)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    gc.disable()
    os.chdir("/")
    return out
