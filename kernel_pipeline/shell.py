"""Time a function from a shell: ``python -m kernel_pipeline bench file.py:function --shape 4096,781``."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .tracebacks import described

if TYPE_CHECKING:
    from .bench_result import BenchResult

EXAMPLE = "python -m kernel_pipeline bench file.py:function --shape 4096,781 --dtype bfloat16"


def main(words: Sequence[str]) -> int:
    """Time the function that the arguments name and print the result. Return the exit status: 0, 1 for an
    invalid time, 2 for an error."""
    parser = argparse.ArgumentParser(prog="python -m kernel_pipeline bench", epilog=f"For example: {EXAMPLE}")
    parser.add_argument("function", help="FILE.py:FUNCTION, or MODULE:FUNCTION")
    parser.add_argument("--shape", action="append", required=True, help="shape of an input; give it for each")
    parser.add_argument("--dtype", default="float32", help="dtype of all inputs (default float32)")
    parser.add_argument("--device", help="cuda or cpu (default cuda, if there is a GPU)")
    parser.add_argument("--cache", choices=("cold", "hot", "both"), default="cold")
    parser.add_argument("--backward", action="store_true", help="time the backward pass, too")
    given = parser.parse_args(words)

    from .arguments import BenchError

    try:
        result = _timed(given)
    except (BenchError, UserError) as error:
        return _error(str(error))
    except (Exception, SystemExit) as error:
        file = Path(given.function.rpartition(":")[0]).resolve()
        return _error(f"{given.function}: {described(error, [file])}")
    print(result)
    for note in result.notes:
        print(f"  {note}")
    return 0 if result.valid else 1


def _timed(given: argparse.Namespace) -> BenchResult:
    """Time the named function. Raises UserError for unusable arguments, BenchError as ``bench`` does, and
    what the user's file raises."""
    import torch

    from .benchmark import bench

    dtype = getattr(torch, given.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(f"--dtype {given.dtype}: write a floating-point dtype of torch, such as bfloat16.")
    if not all(re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", shape) for shape in given.shape):
        raise UserError(
            f"--shape {' '.join(given.shape)}: write whole numbers with commas, such as 4096,781."
        )
    shapes = [tuple(map(int, shape.split(","))) for shape in given.shape]
    try:
        function = named(given.function)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise UserError(f"{given.function}: {error}; write FILE.py:FUNCTION.") from error
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"--device {device}: write cuda or cpu.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"--device {device}: torch finds no GPU here; write --device cpu.")

    def make(seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)

    return bench(function, make=make, cache=given.cache, backward=given.backward, name=given.function)


def named(text: str) -> Callable[..., Any]:
    """Import the function ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``. Raises ValueError, ImportError,
    OSError or AttributeError."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ValueError("no function is named")
    if where.endswith(".py"):
        path = Path(where).resolve()
        # A file may have the name of an installed package that it imports, as triton.py.
        spec = importlib.util.spec_from_file_location(f"_bench_{path.stem}", path)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        sys.path.append(str(path.parent))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    if not hasattr(module, name):
        raise AttributeError(f"module {Path(where).stem!r} has no attribute {name!r}")
    function = getattr(module, name)
    if not callable(function):
        raise ValueError(f"{name} is not a function")
    return function  # type: ignore[no-any-return]


def _error(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2
