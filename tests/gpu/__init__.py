"""Tests that need an NVIDIA GPU. Without one, a file of them is one skip and is not even imported."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
