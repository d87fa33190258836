"""compute-sanitizer's memcheck on a submission that is judged."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.confinement import Confinement
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.point import Point

from . import sanitizer

CLEAN = "no error"

NOT_RUN = "did not run"


@dataclass(frozen=True)
class Memcheck:
    """memcheck on one device."""

    device: Device
    seed: int
    timeout_s: float

    def __call__(self, where: str, point: Point, confined: Confinement | None) -> tuple[str, bool]:
        """Call a point of the kernel ``where`` under memcheck, confined if limits are given.

        Returns the findings as a text, and whether there is an error. Without a GPU or compute-sanitizer, and
        for a call that can't be checked, the text is the reason why memcheck did not run.
        """
        if self.device.uuid is None:
            return f"{NOT_RUN}: this machine has no GPU", False
        try:
            tool = sanitizer.find()
        except UserError as error:
            return f"{NOT_RUN}: {error}".rstrip("."), False
        os.environ["CUDA_VISIBLE_DEVICES"] = self.device.uuid
        found = tool.session("memcheck", where, [point], self.seed, self.timeout_s, confined)
        if found.errors:
            return "; ".join(found.findings), True
        return (CLEAN if found.is_clean else f"{NOT_RUN}: {found.trouble}"), False
