"""A variant as people write it on a command line: ``triton_online/1024x8w/bfloat16/sm_90``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernels.point import AXES, DTYPE_NAMES, Point
from pipeline.errors import UserError, unknown
from pipeline.measure.evidence import CodeRow
from pipeline.measure.extension import CUDA_SOURCE
from pipeline.measure.results import axes

if TYPE_CHECKING:
    from kernels.contract import Kernel


def variant(point: Point) -> str:
    """A point's configuration in one word: ``triton_online-float32-1024x8w``."""
    fields = asdict(point)
    return "-".join(filter(None, [point.provider, point.dtype, axes(fields)]))


IN_CPP = {"float32": "float", "bfloat16": "BFloat16", "float16": "Half"}
"""The dtypes as a CUDA function's template arguments name them."""


def is_for(function: str, dtype: str) -> bool:
    """Whether a function is for a dtype, as far as its name tells."""
    named = {name for name, word in IN_CPP.items() if re.search(rf"\b{word}\b", function)}
    return not named or dtype in named


@dataclass(frozen=True)
class Variant:
    """What the words of a variant pin; what they leave open is the first value of the grid. ``rows`` is None
    where they follow from the size."""

    text: str
    provider: str
    size: int
    rows: int | None
    dtype: str
    launch: Mapping[str, int]
    architecture: str
    function: str | None

    @classmethod
    def read(
        cls, text: str, kernel: Kernel, values: Mapping[str, Sequence[Any]], architecture: str
    ) -> Variant:
        """Read ``PROVIDER/WORD/…``: a word is a launch (``1024x8w``, ``8w``), a dtype, a size (``4096``, or
        ``37x4096`` with 37 rows), an architecture (``sm_80``), or part of a CUDA function's name.

        Raises UserError for an unknown provider, a word that is none of these, and a launch that the provider
        does not obey; whether the values are any good is the configuration's to say.
        """
        name, *words = [word.strip() for word in text.split("/")]
        known = [provider.name for provider in kernel.providers]
        if name not in known:
            raise unknown(f"provider of {kernel.name}", name, known)
        size, dtype, function = int(values["size"][0]), str(values["dtype"][0]), None
        rows = values["rows"][0] or kernel.rows
        launch = {axis: int(values[axis][0]) for axis in AXES}
        for word in words:
            if match := re.fullmatch(r"sm_(\w+)", word):
                architecture = match[1]
            elif word in DTYPE_NAMES:
                dtype = word
            elif match := re.fullmatch(r"(?:(\d+)x)?(\d+)", word):
                rows, size = int(match[1]) if match[1] else rows, int(match[2])
            elif match := re.fullmatch(r"(?:(\d+)x)?(\d+)w(?:x(\d+)s)?", word):
                pinned = zip(AXES, match.groups(), strict=True)
                written = {axis: int(value) for axis, value in pinned if value}
                if strange := written.keys() - kernel.provider(name).axes:
                    raise UserError(f"'{text}': {name} takes no {' and no '.join(sorted(strange))}.")
                launch |= written
            elif kernel.provider(name).source == CUDA_SOURCE and function is None:
                function = word
            else:
                raise UserError(
                    f"can't read '{word}' in '{text}': write a launch (1024x8w, 8w), a dtype "
                    f"({', '.join(DTYPE_NAMES)}), a size (4096, 37x4096) or an architecture (sm_80)."
                )
        return cls(text, name, size, rows, dtype, launch, architecture, function)

    def pins(self) -> dict[str, Any]:
        """The options that leave this variant alone in the grid."""
        pinned = {axis: (value,) for axis, value in self.launch.items()}
        rows = None if self.rows is None else (self.rows,)
        return {
            "provider": (self.provider,),
            "size": (self.size,),
            "rows": rows,
            "dtype": (self.dtype,),
            **pinned,
        }

    def one(self, rows: Sequence[CodeRow]) -> CodeRow:
        """The row that is meant. Raises UserError when there is none, or when several functions could be."""
        counted = [row for row in rows if row.mix is not None]
        known = [row for row in counted if row.launch_known] or counted
        known = [row for row in known if is_for(row.function, self.dtype)] or known
        if not known:
            reason = next((row.error for row in rows if row.error), "nothing was compiled")
            raise UserError(f"'{self.text}' has no code to compare: {reason}.")
        names = list(dict.fromkeys(row.function for row in known))
        if len(names) > 1:
            raise UserError(
                f"'{self.text}' may be any of {', '.join(names)}: which one a point launches is known on a "
                f"GPU only; write one, '\"{self.provider}/{names[0]}\"'."
            )
        return known[0]
