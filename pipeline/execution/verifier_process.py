"""The process that verifies: it owns the inputs and imports no provider.

Started by ``supervisor`` as ``python -m pipeline.execution.verifier_process PARENT FD MEMORY``; FD is its end
of a socket pair, MEMORY the descriptor of the shared memory of a CPU."""

from __future__ import annotations

import gc
import sys
from math import log2
from multiprocessing.connection import Connection

import torch

from kernel_pipeline import loading, verification
from kernel_pipeline.loading import Tensors
from kernel_pipeline.machine import torch_install
from kernel_pipeline.machine.reaper import die_with
from kernel_pipeline.records.base import Record
from pipeline.execution import verifier
from pipeline.execution.faults import failed
from pipeline.execution.protocol import (
    AccuracyMeasured,
    MeasureAccuracy,
    Prepare,
    Prepared,
    Release,
    Repeat,
    Repeated,
    Setup,
    receive,
    serve,
)
from pipeline.execution.verifier import Verifier

CHUNK = 1 << 24
"""Elements looked at at a time; the median is that of no more, evenly spread."""

REQUESTS = (MeasureAccuracy, Repeat)


class AccuracyVerifier(Verifier):
    """A verifier that gives each provider the inputs in the form that it takes, and also says how right
    outputs are."""

    _kept: Tensors = ()

    def answer(self, request: Record) -> Record:
        """The answer to any request. Raises whatever the reference does."""
        if isinstance(request, MeasureAccuracy):
            return self.appraise(request)
        if isinstance(request, Repeat):
            return self.repeat()
        return super().answer(request)

    def prepare(self, request: Prepare) -> Prepared:
        """Find room for a problem's inputs, in the form that the provider takes, and its outputs."""
        loaded = loading.load(request.where)
        address = loaded.address(request.point.provider)
        if self._case is not None and self._case.loaded != loading.load(address):
            # One problem's case in another form: its key is the same, its inputs are not.
            self.release(Release())
        return super().prepare(request.replace(where=address))

    def appraise(self, request: MeasureAccuracy) -> AccuracyMeasured:
        """The distance of the outputs from the answer to an edition; they are kept."""
        found = self._edition(request.edition).expected
        self._kept = tuple(out.clone() for out in self._outputs())
        parts = [
            ulps(out, reference.reshape(out.shape))
            for out, reference in zip(self._kept, found.reference, strict=False)
            if out.is_floating_point()
        ]
        together = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.zeros(1)
        step = max(1, together.numel() // CHUNK)
        return AccuracyMeasured(
            ulp_median=together[::step].median().item(), ulp_worst=together.max().item() if parts else 0.0
        )

    def repeat(self) -> Repeated:
        """Whether the outputs are those that were kept; they are let go."""
        kept, self._kept = self._kept, ()
        pairs = zip(self._outputs(), kept, strict=True)
        return Repeated(same=all(torch.equal(_bits(out), _bits(before)) for out, before in pairs))

    def _outputs(self) -> Tensors:
        shared = self._shared
        assert shared is not None, "there is room before there are outputs"
        # Of a call that is in place they lie where its inputs were.
        return self._seen(shared.outputs or shared.inputs, 0)


def ulps(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The distance of each element from a float64 reference, in units in the last place of the output's dtype
    at the reference: how far the dtype's numbers lie apart there. Where either is no finite number, or the
    reference rounds to one that the dtype does not have, there is no distance: 0.

    out: of a floating-point dtype; reference: of the same shape. Returns float64 of that shape.
    """
    limits = torch.finfo(out.dtype)
    digits = round(-log2(limits.eps))
    got, want = out.double(), reference.double()
    least = round(log2(limits.tiny)) + 1
    exponent = torch.frexp(want).exponent.clamp_min(least).where(want != 0, least)
    apart = torch.ldexp(torch.ones_like(want), exponent - 1 - digits)
    distance = (got - want).abs_().div_(apart)
    return distance.where(got.isfinite() & want.isfinite() & (want.abs() <= limits.max), 0.0)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def main(parent: int, fd: int, memory: int) -> None:
    """Answer requests until the other end closes."""
    die_with(parent)
    connection = Connection(fd)
    setup = receive(connection, Setup)
    appraiser = AccuracyVerifier(setup.device, setup.seed, memory, setup.values)
    if appraiser.device.type == "cpu":
        torch_install.resolve_vector_math()
    verification.warm_up(appraiser.device)
    gc.collect()
    gc.freeze()

    def answer(request: Record) -> Record:
        try:
            return appraiser.answer(request)
        except Exception as error:
            return failed(error)

    serve(connection, answer, *verifier.REQUESTS, *REQUESTS)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
