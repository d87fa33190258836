"""Run commands in this process, where torch is already imported."""

import sys
from collections.abc import Callable
from typing import Any

import pytest


def exit_code(
    run: Callable[..., Any], name: str, schema: type, stage: Callable[..., None], *words: str
) -> int:
    """Run a command's ``run_stage`` or ``run_each`` with these words. Return its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [name, *words])
        run(name, schema, stage)
    return int(str(ended.value.code))
