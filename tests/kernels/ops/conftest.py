"""Choices of tests, and counts that begin at zero."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kernel_pipeline import ops
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import asked, table_files, tuned
from kernel_pipeline.ops.choice import Choice


def forget() -> None:
    for name in ops.names():
        ops.function(name).forget()
    asked.forget()
    table_files.said.clear()


@pytest.fixture(autouse=True)
def nothing_planned() -> Iterator[None]:
    """Forget plans, which would carry one test's choice into the next."""
    forget()
    yield
    forget()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes a provider the choice for every problem, with other parameters for kernels that are named;
    returns the list of problems."""

    def choose(
        provider: str,
        parameters: Mapping[str, Any] | None = None,
        how: str = "exact",
        **of_kernels: Mapping[str, Any],
    ) -> list[Any]:
        problems: list[Any] = []

        def answer(loaded: Loaded, problem: object, gpu: object, slug: object) -> Choice:
            problems.append(problem)
            found = of_kernels.get(loaded.name, parameters or {})
            return Choice(provider, found, how, "" if how == "exact" else "it was planted.")

        monkeypatch.setattr(tuned, "choose", answer)
        return problems

    return choose
