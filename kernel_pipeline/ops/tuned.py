"""Choose the provider and its configuration for a problem, by the tables of this and of other GPUs.

A problem that was tuned on this GPU gets its fastest configuration. A problem between tuned problems gets the
choice of the rule (module ``rule``) if the table trusts the rule there. Otherwise it gets the safest of the
rule's choice, a provider's default configuration, and torch. A problem in float16 or bfloat16 that no tuned
problem compares with gets the rule's choice by problems in the other of these dtypes. A GPU without a table
gets the rule's choice by the table of another GPU of the same compute capability. So does a problem for which
that table has a nearer problem, where the rule is not trusted, or a provider that was not measured on this
GPU or was edited since, if the choice is clearly faster by that table. Except at a tuned problem, torch is
called unless the choice is predicted clearly faster (module ``prediction``). A configuration is chosen only
if it was verified with the present source, on the GPU and in the dtype whose times are used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..contract import Gpu
from ..loading import Loaded
from . import table_files
from .choice import Choice
from .chooser import Chooser, baseline
from .table import Table

OTHER_DTYPE = {"float16": "bfloat16", "bfloat16": "float16"}
"""The dtype of the same size, whose bytes and products take equally long."""


def choose(loaded: Loaded, problem: object, gpu: Gpu | None, slug: str | None) -> Choice:
    """Return the choice for a problem of a kernel on a GPU.

    problem:
        An instance of the kernel's problem type.
    gpu, slug:
        The GPU and its slug (``nvidia-h200``); both None on a CPU, where torch is called.

    Warns once in a process of a table that can't be used, and of a provider that can't be called.
    """
    return chosen(loaded, problem, gpu, slug)[0]


def chosen(
    loaded: Loaded, problem: object, gpu: Gpu | None, slug: str | None, warns: bool = True
) -> tuple[Choice, Chooser | None]:
    """Return the choice, and what made it by a table; None if no table has the kernel. The arguments are
    those of ``choose``. Without ``warns`` no provider that can't be called is warned of."""
    if slug is None:
        reason = "only GPUs have tables of tuned configurations, and these tensors are not on a GPU."
        return baseline(loaded.kernel, reason), None
    file = table_files.file_of(slug)
    found = None if file is None else table_files.read(file, slug)
    own = None
    if found is not None and loaded.name in found.kernels:
        own = Chooser(found, loaded, problem, gpu, file, warns=warns)
        choice = own.choose()
    elif found is not None:
        choice = baseline(loaded.kernel, f"{loaded.name} was not tuned on {slug}.")
    else:
        reason = f"there is no usable table of tuned configurations for {slug}."
        choice = baseline(loaded.kernel, reason)
    is_broken = file is not None and found is None
    if gpu is not None and not is_broken:
        other = table_files.sibling(table_files.folders(), slug, gpu)
        own_table = None if found is None or choice.how != "torch" else (file, found)
        if own is not None and choice.how == "exact":
            other = other if own.lacks_any_of(other) else None
        for chooser in _elsewhere(own_table, other, loaded, problem, gpu):
            why: str | None = choice.reason
            if own is not None and choice.how != "torch":
                why = own.lacks(chooser.provider) or own.nearer_in(chooser, choice)
                why = why if chooser.is_faster_than(choice) else None
            if why is not None and (made := chooser.choose_elsewhere(why)) is not None:
                return made, chooser
        if file is None and other is None and warns:
            table_files.warn_of_variable(slug)
    return choice, own


def _elsewhere(
    own: tuple[Path | None, Table] | None,
    other: tuple[Path, Table] | None,
    loaded: Loaded,
    problem: Any,
    gpu: Gpu,
) -> list[Chooser]:
    """Return the choosers by times that are not the problem's own, the nearest first: by another GPU's table,
    and by the table of either GPU in the other dtype, if it has no comparable problem in the problem's."""
    found = []
    for place, how in ((own, "other_dtype"), (other, "sibling")):
        if place is None or loaded.name not in place[1].kernels:
            continue
        file, table = place
        same = Chooser(table, loaded, problem, gpu, file, how)
        dtype = OTHER_DTYPE.get(same.values.get("dtype", ""))
        if how == "sibling":
            found.append(same)
        if dtype is not None and not same.comparable:
            found.append(Chooser(table, loaded, problem, gpu, file, how, dtype=dtype))
    return sorted(found, key=lambda one: one.distance)


def choose_by(found: Table, loaded: Loaded, problem: object, gpu: Gpu | None) -> Choice:
    """Return the choice for a problem from the given table of the GPU alone."""
    if loaded.name not in found.kernels:
        return baseline(loaded.kernel, f"{loaded.name} was not tuned on {found.gpu}.")
    return Chooser(found, loaded, problem, gpu).choose()
