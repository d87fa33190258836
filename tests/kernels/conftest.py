"""The number of torch's threads."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.kernel_cases import Case

SEVERAL = 2
"""Threads of a C++ provider, so that they share its work out."""


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One: tensors are small, and threads that wait for an interpreter's next operation take a third of all
    time. Several for C++ providers."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    before = torch.get_num_threads()
    torch.set_num_threads(SEVERAL if isinstance(case, Case) and case.provider.language == "cpp" else 1)
    yield
    torch.set_num_threads(before)
