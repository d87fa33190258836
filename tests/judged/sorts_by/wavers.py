"""Right, with another last bit at each call."""

import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, out = data
    unit = torch.finfo(x.dtype).eps * torch.randint(2, x.shape, device=x.device)
    return out.copy_(torch.sort(x)[0] * (1 + unit))
