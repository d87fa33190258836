"""The process that verifies: it owns the inputs and imports no provider.

``supervisor`` starts it as ``python -m kernel_pipeline.execution.verifier_process PARENT FD MEMORY``; FD is
its end of a socket pair, MEMORY the descriptor of the shared memory of a CPU."""

from __future__ import annotations

import gc
import sys
from math import log2
from multiprocessing.connection import Connection

import torch

from .. import loading, verification
from ..loading import Tensors
from ..machine import torch_install
from ..machine.reaper import die_with
from ..records.base import Record
from . import verifier
from .editions import compared_together
from .faults import failed
from .message_connection import receive, serve
from .protocol import (
    AccuracyMeasured,
    Check,
    Checked,
    MeasureAccuracy,
    Prepare,
    Prepared,
    ReadCalls,
    Release,
    Repeat,
    Repeated,
    Setup,
)
from .verifier import Verifier

CHUNK = 1 << 24
"""With more elements than this, the median is taken over at least this many of them, evenly spread."""

REQUESTS = (MeasureAccuracy, Repeat)


class AccuracyVerifier(Verifier):
    """A verifier that makes inputs in the provider's form, and also measures the accuracy of outputs."""

    _kept: Tensors = ()
    _calls: tuple[Tensors, ...] = ()

    def answer(self, request: Record) -> Record:
        """Answer any request. Raises whatever the reference raises."""
        if isinstance(request, MeasureAccuracy):
            return self.appraise(request)
        if isinstance(request, Repeat):
            return self.repeat()
        return super().answer(request)

    def prepare(self, request: Prepare) -> Prepared:
        """Find room for a problem's inputs, in the provider's form, and its outputs."""
        loaded = loading.load(request.where)
        address = loaded.address(request.point.provider)
        if self._case is not None and self._case.loaded != loading.load(address):
            # The same problem in two forms has one key, but different inputs: the kept case can't be used.
            self.release(Release())
        found = super().prepare(request.replace(where=address))
        kernel = loaded.kernel
        is_prepared = kernel.provider(request.point.provider).prepare is not None
        weights = loaded.weights() if is_prepared else ()
        more = ReadCalls(memory=kernel.peak_memory, host=kernel.host_time)
        is_asked = kernel.peak_memory or kernel.host_time
        return found.replace(weights=weights, draws=kernel.draws, more=more if is_asked else None)

    def check(self, request: Check) -> Checked:
        """Check that shared memory holds the right answer, and random outputs together with those of earlier
        calls on the same inputs."""
        found, case = super().check(request), self._case
        if case is None or not case.loaded.kernel.draws or found.error is not None:
            return found
        outputs = tuple(out.clone() for out in self._outputs()[: len(case.declared)])
        self._calls = calls = (*(self._calls if request.calls > 1 else ()), outputs)
        if request.calls > 1 and all(map(_same_bits, *calls[-2:])):
            return found.replace(error="gave the same outputs as the call before, which are drawn at random")
        if request.calls == case.loaded.kernel.draws:
            return found.replace(error=compared_together(case, self._edition(request.edition), calls))
        return found

    def appraise(self, request: MeasureAccuracy) -> AccuracyMeasured:
        """Measure the distance of the outputs from the answer to an edition, and keep the outputs."""
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
        """Compare the outputs with the kept outputs bit by bit, and drop the kept outputs."""
        kept, self._kept = self._kept, ()
        pairs = zip(self._outputs(), kept, strict=True)
        return Repeated(same=all(_same_bits(out, before) for out, before in pairs))

    def _outputs(self) -> Tensors:
        shared = self._shared
        assert shared is not None, "there is room before there are outputs"
        # A call in place writes its outputs over its inputs.
        return self._seen(shared.outputs or shared.inputs, 0)


def ulps(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return the distance of each element from a float64 reference in ulps of the output's dtype.

    An ulp, a unit in the last place, is the distance between two adjacent numbers of the dtype at the
    reference. The distance is 0 where either number is not finite, or the reference is beyond the dtype's
    range.

    ``out`` has a floating-point dtype, ``reference`` the same shape. Returns float64 of that shape.
    """
    limits = torch.finfo(out.dtype)
    digits = round(-log2(limits.eps))
    got, want = out.double(), reference.double()
    least = round(log2(limits.tiny)) + 1
    exponent = torch.frexp(want).exponent.clamp_min(least).where(want != 0, least)
    apart = torch.ldexp(torch.ones_like(want), exponent - 1 - digits)
    distance = (got - want).abs_().div_(apart)
    return distance.where(got.isfinite() & want.isfinite() & (want.abs() <= limits.max), 0.0)


def _same_bits(x: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bits(x), _bits(other))


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
