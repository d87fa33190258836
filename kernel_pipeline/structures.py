"""Arguments that hold tensors: rows, lists and mappings of tensors, and None for an optional tensor.

The processes that measure exchange tensors in a row. ``flat`` brings a structure into a row, and ``adapted``
makes a function of a row of an entry that takes a structure, or memory for its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from .declared import ContractError

if TYPE_CHECKING:
    import torch

LEAF = object()
"""Stands for a tensor in a structure."""


def flat(made: Any) -> Iterator[Any]:
    """Yield the leaves of a structure in their order, without None."""
    if isinstance(made, (list, tuple, Mapping)):
        for one in made.values() if isinstance(made, Mapping) else made:
            yield from flat(one)
    elif made is not None:
        yield made


def structure(made: Any) -> Any:
    """Return a structure with ``LEAF`` in place of its tensors."""
    if isinstance(made, Mapping):
        return {name: structure(one) for name, one in made.items()}
    if isinstance(made, (list, tuple)):
        return [structure(one) for one in made] if isinstance(made, list) else tuple(map(structure, made))
    return made if made is None else LEAF


def filled(of: Any, leaves: Iterator[Any]) -> Any:
    """Return a structure with the next of ``leaves`` in place of each ``LEAF``."""
    if of is LEAF:
        return next(leaves)
    if isinstance(of, dict):
        return {name: filled(one, leaves) for name, one in of.items()}
    if isinstance(of, list):
        return [filled(one, leaves) for one in of]
    if isinstance(of, tuple):
        return tuple(filled(one, leaves) for one in of)
    return of


def is_row(of: Any) -> bool:
    """Whether a structure is a row of leaves and nothing else."""
    return isinstance(of, (list, tuple)) and all(one is LEAF for one in of)


def declared(outputs: Any) -> tuple[Any, list[tuple[tuple[int, ...], torch.dtype]]]:
    """Return the structure of declared tensors, and the shape and dtype of each in a row."""
    import torch

    found: list[tuple[tuple[int, ...], torch.dtype]] = []

    def read(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {name: read(inner) for name, inner in one.items()}
        if isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[1], torch.dtype):
            found.append((tuple(one[0]), one[1]))
            return LEAF
        return one if one is None else [read(inner) for inner in one]

    return read(outputs), found


def in_row(returned: Any, outputs: Any) -> tuple[Any, ...]:
    """Return outputs in a row, in the order of their declaration ``outputs``."""
    if isinstance(outputs, dict) and isinstance(returned, Mapping):
        return tuple(flat([returned.get(name) for name in outputs]))
    return tuple(flat(returned))


def adapted(
    entry: Callable[..., Any], inputs: Any, outputs: Any, workspaces: Any, destination: str | None
) -> Callable[..., Any]:
    """Return a function that takes the input tensors in a row and returns the outputs in a row.

    ``inputs`` is a structure; ``outputs`` and ``workspaces`` are as declared. With a ``destination`` the
    entry gets new memory for its outputs in each call, as it gets for its workspaces. Returns the entry
    itself if it already is such a function.
    """
    import torch

    results, shapes = declared(outputs)
    scratch, scratch_shapes = declared(workspaces)
    is_whole = is_row(results)
    if is_row(inputs) and is_whole and destination is None and not scratch:
        return entry
    if destination == "last" and isinstance(inputs, dict) and not isinstance(results, dict):
        raise ContractError("inputs have names, so outputs(problem) must name the outputs, too: {name: ...}.")

    call = calling((results, scratch, inputs) if destination == "first" else (inputs, scratch, results))
    if destination is None:
        call = calling((inputs, scratch))
    last, handed = len(shapes), [*(shapes if destination else ()), *scratch_shapes]

    def on_tensors(*tensors: torch.Tensor) -> Any:
        device = tensors[0].device if tensors else torch.get_default_device()
        new = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in handed]
        if destination is None:
            made = call(entry, (tensors, new))
            return made if is_whole else in_row(made, results)
        out, more = tuple(new[:last]), new[last:]
        call(entry, (out, more, tensors) if destination == "first" else (tensors, more, out))
        return out

    return on_tensors


def calling(parts: Sequence[Any]) -> Callable[[Callable[..., Any], Sequence[Sequence[Any]]], Any]:
    """Return ``call(function, rows)``, which calls a function with ``parts`` of its arguments, each filled
    from its row. It is compiled, because its time is a part of the call's on a CPU."""

    def text(of: Any, leaves: Iterator[str]) -> str:
        if of is LEAF:
            return next(leaves)
        if isinstance(of, dict):
            return f"{{{''.join(f'{name!r}: {text(one, leaves)}, ' for name, one in of.items())}}}"
        if of is None:
            return "None"
        inner = "".join(f"{text(one, leaves)}, " for one in of)
        return f"[{inner}]" if isinstance(of, list) else f"({inner})"

    written = []
    for number, part in enumerate(parts):
        # A row may be longer or shorter than its part, if it has prepared weights.
        leaves = (f"rows[{number}][{place}]" for place in count())
        whole = f"rows[{number}]" if is_row(part) else text(part, leaves)
        written.append(f"**{whole}" if isinstance(part, dict) else f"*{whole}")
    # Rows go before named arguments.
    written.sort(key=lambda one: one.startswith("**"))
    call: Callable[..., Any] = eval(f"lambda function, rows: function({', '.join(written)})")
    return call
