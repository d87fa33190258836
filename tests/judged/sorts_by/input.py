"""Returns a copy of its input."""

from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, out = data
    out.copy_(x)
    return out
