"""Writes to the memory that is handed in, and imports the task's module at each call."""

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    import utils

    x, out = data
    assert utils.close(torch.ones(1), torch.ones(1), rtol=0.0) == ""
    return out.copy_(torch.sort(x)[0])
