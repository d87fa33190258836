"""Run commands to their end and keep their output."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def completed(
    command: Sequence[str | Path], check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its exit code and the text of its output and errors."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)
