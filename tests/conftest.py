"""Where there is no GPU, Triton runs under its interpreter, which must be chosen before a kernel's import."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """The interpreter computes in NumPy, which warns of the infinities and NaN that the tests ask for."""
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning:triton.runtime.interpreter")
