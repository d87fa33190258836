"""Every provider that this host can run, so that the tests for every kernel find a new one. Their problems
are those of the kernel's workload ``smoke``, also of other sizes and with each of its words.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, TypeVar

import pytest
import torch
from _pytest.mark import ParameterSet

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance
from kernel_pipeline.declared import Value, shown
from kernel_pipeline.loading import Loaded, Tensors, as_tuple
from kernel_pipeline.tensors import FLOATS as FLOAT_NAMES
from kernel_pipeline.tensors import dtype_of
from kernel_pipeline.verification import narrowed
from pipeline.points import catalog
from pipeline.points.catalog import problems_of

ON_GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
META = torch.device("meta")

SMALL = {"block_size": 128, "num_warps": 4, "threads": 32, "tile": 16}
"""A launch for providers over matrices, small so that rows of a few hundred columns take several steps."""

MOST_OPERATIONS = 2 * 10**12
"""Above it the float64 reference takes seconds."""

MOST_SIMULATED = 100_000
"""Above it Numba's simulator takes seconds."""

EVERY_KERNEL = [loading.load(name) for name in loading.names()]
KERNELS = [pytest.param(loaded, id=loaded.name) for loaded in EVERY_KERNEL]
FLOATS = [pytest.param(dtype_of(name), id=name) for name in FLOAT_NAMES]


def gpu() -> Gpu | None:
    """Return this host's GPU as ``fits`` takes it."""
    if not ON_GPU:
        return None
    of = torch.cuda.get_device_properties(0)
    return Gpu(
        (of.major, of.minor), of.multi_processor_count, of.shared_memory_per_block_optin, of.L2_cache_size
    )


entry_of = cache(catalog.find)
"""A kernel's declaration and YAML by its name. Reading a YAML takes longer than most tests."""


def smoke(loaded: Loaded, **pins: Value) -> Iterator[Any]:
    """The problems of the workload ``smoke``, with pinned dimensions or a pinned ``size``."""
    entry = entry_of(loaded.name)
    return problems_of(
        entry, entry.config.workloads["smoke"], {name: (value,) for name, value in pins.items()}
    )


def problem_of(loaded: Loaded, size: int | None = None, **words: Value) -> Any:
    """The first problem of ``smoke``, of another size and with other words where they are given."""
    return next(smoke(loaded, **({} if size is None else {"size": size}), **words))


def words_of(loaded: Loaded) -> list[ParameterSet]:
    """Return test parameters: the words of ``smoke``'s first problem, and these with each single word
    replaced."""
    choices = {name: one.values for name, one in loaded.kernel.dimensions().items() if one.values is not None}
    problem = problem_of(loaded)
    first = {name: getattr(problem, name) for name in choices}
    others = [
        first | {name: value} for name, values in choices.items() for value in values if value != first[name]
    ]
    return [pytest.param(words, id="-".join(map(shown, words.values()))) for words in (first, *others)]


def interpreted(loaded: Loaded, problem: Any) -> Any:
    """Return the problem, or its interpreted form on a host without a GPU."""
    return problem if ON_GPU else loaded.kernel.interpreted(problem)


def tolerances(kernel: Kernel, problem: Any, outputs: int) -> tuple[Tolerance, ...]:
    """Return a tolerance for each output."""
    allowed = kernel.tolerance(problem)
    return allowed if isinstance(allowed, tuple) else (allowed,) * outputs


@dataclass(frozen=True)
class Case:
    """A provider of a kernel and the device on which this host can run it."""

    loaded: Loaded
    provider: Provider

    @property
    def kernel(self) -> Kernel:
        return self.loaded.kernel

    @property
    def in_form(self) -> Loaded:
        """The kernel with the inputs in the form that the provider takes."""
        return loading.load(self.loaded.address(self.provider.name))

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if ON_GPU and "cuda" in self.provider.devices else "cpu")

    @property
    def runs_here(self) -> bool:
        if not self.provider.is_installed:
            return False
        if self.device.type == "cuda":
            here = gpu()
            return here is not None and self.provider.runs_on(here) is None
        return "cpu" in self.provider.devices or self.provider.interpreted

    @property
    def is_own(self) -> bool:
        """Written in this repository, and not by torch."""
        return self.provider.is_own

    @property
    def is_simulated(self) -> bool:
        """Each of its threads is one of Python's."""
        return self.provider.language == "numba" and not ON_GPU

    @property
    def compiles_slowly(self) -> bool:
        """Inductor takes about a second for every new shape, dtype and layout."""
        return self.provider.compiled

    @property
    def refusal(self) -> tuple[type[Exception], ...]:
        """The errors of a refusal; torch turns an operator's error into a RuntimeError."""
        return (ValueError,) if self.provider.extension is None else (ValueError, RuntimeError)

    def problem(self, size: int | None = None, **words: Value) -> Any:
        """A problem that this host can do; skips the test where there is none."""
        try:
            problem = interpreted(self.loaded, problem_of(self.loaded, size, **words))
        except ValueError as error:
            pytest.skip(f"no problem: {error}")
        operations = self.kernel.work(problem).flops
        if operations > MOST_OPERATIONS:
            pytest.skip("too much for the reference")
        if self.is_simulated and operations > MOST_SIMULATED:
            pytest.skip("too much for Numba's simulator")
        return problem

    def inputs(self, problem: Any, seed: int = 0) -> Tensors:
        return self.in_form.inputs(problem, self.device, seed)

    def configuration(
        self,
        problem: Any,
        *,
        preferred: Mapping[str, Value] | None = None,
        pinned: Mapping[str, Value] | None = None,
        on: Gpu | None = None,
    ) -> dict[str, Value]:
        """One that fits, of the preferred values and defaults if these do; skips the test where none does."""
        names = self.provider.variables()
        choices = []
        for name, variable in names.items():
            if pinned is not None and name in pinned:
                choices.append([pinned[name]])
                continue
            first = (preferred or {}).get(name, variable.default)
            choices.append(list(dict.fromkeys([first, variable.default, *(variable.values or ())])))
        reason = None
        for values in product(*choices):
            chosen = dict(zip(names, values, strict=True))
            parameters = None if self.provider.parameters is None else self.provider.parameters(**chosen)
            reason = self.provider.fits(problem, parameters, gpu() if on is None else on)
            if reason is None:
                return chosen
        pytest.skip(f"nothing fits: {reason}")

    def load(self) -> None:
        """Builds and loads the library that the provider needs."""
        if self.provider.extension is not None:
            from kernel_pipeline.toolchain import extension

            extension.load(extension.Place.for_kernel(self.loaded), self.provider.extension)

    def call(self, problem: Any, inputs: Tensors, parameters: Mapping[str, Any]) -> Tensors:
        """The outputs."""
        self.load()
        out = self.loaded.call(self.provider, problem, parameters)(*inputs)
        if self.kernel.in_place and out is None:
            return inputs[: len(self.loaded.outputs(problem))]
        return as_tuple(out)

    def check(self, outputs: Tensors, expected: Tensors, problem: Any) -> None:
        """Fails unless the outputs are the reference's within the kernel's tolerance, NaN for NaN.

        Where the answer is beyond the dtype's largest number, that is infinity.
        """
        declared = self.loaded.returned(problem, outputs)
        allowed = tolerances(self.kernel, problem, len(declared))
        for out, exact, (shape, dtype), within in zip(outputs, expected, declared, allowed, strict=True):
            assert (tuple(out.shape), out.dtype, out.device.type) == (shape, dtype, self.device.type)
            # A reference holds the bits of uint64 in int64.
            wanted = (narrowed(exact, dtype) if dtype == torch.uint64 else exact).double()
            if dtype.is_floating_point:
                rounded = exact.to(dtype)
                # float8 knows no isinf, and of the others a copy in float64 may be more than a GPU holds.
                beyond = (rounded if dtype.itemsize > 1 else rounded.float()).isinf()
                wanted = torch.where(beyond, rounded.double(), wanted)
            torch.testing.assert_close(
                out.double(), wanted, rtol=within.rtol, atol=within.atol, equal_nan=True
            )

    def verify(
        self, problem: Any, inputs: Tensors, parameters: Mapping[str, Any], expected: Tensors | None = None
    ) -> Tensors:
        """The outputs. Fails unless a call gives the reference's answer, or the expected one if given, and
        does not change inputs that it only reads."""
        expected = self.in_form.expected(problem, inputs) if expected is None else expected
        before = [tensor.clone() for tensor in inputs]
        outputs = self.call(problem, inputs, parameters)
        written = len(outputs) if self.kernel.in_place else 0
        for tensor, old in zip(inputs[written:], before[written:], strict=True):
            assert torch.equal(bits(tensor), bits(old)), "an input was changed"
        del before
        self.check(outputs, expected, problem)
        return outputs


@dataclass(frozen=True)
class MatrixCase(Case):
    """A provider of a kernel from a matrix to a matrix, with further inputs of its columns, such as a
    weight. Any rows and columns and any launch are possible."""

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> Any:
        """The problem, which may be in no sweep."""
        return self.kernel.problem(rows=rows, columns=columns, dtype=str(dtype).removeprefix("torch."))

    def of_shape(self, shape: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> Tensors:
        """The inputs of a matrix of this shape."""
        return self.inputs(self.matrix(*shape, dtype), seed)

    def of_size(self, size: int, dtype: torch.dtype, seed: int = 0) -> Tensors:
        """The inputs of a size, with as many rows as this host can do."""
        return self.inputs(self.problem(size, dtype=str(dtype).removeprefix("torch.")), seed)

    def with_parameters(self, x: torch.Tensor) -> Tensors:
        """The tensor and the kernel's further inputs for its shape and dtype."""
        return (x, *self.of_shape((x.shape[0], x.shape[1]), x.dtype)[1:])

    def launch(self, **wanted: int) -> dict[str, int]:
        """The launch ``SMALL`` with wanted values, as far as the provider has these parameters."""
        variables = self.provider.variables()
        return {name: wanted.get(name, SMALL.get(name, one.default)) for name, one in variables.items()}

    def run(self, *inputs: torch.Tensor, **wanted: int) -> torch.Tensor:
        """The provider's output, launched as ``launch`` says; skips the test of a dtype that it never
        takes."""
        if self.provider.language == "numba" and inputs[0].dtype == torch.bfloat16:
            pytest.skip("Numba takes no bfloat16")
        self.load()
        out: torch.Tensor = self.loaded.entry(self.provider)(*inputs, **self.launch(**wanted))
        return out

    def exact(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The right answer."""
        return self.loaded.expected(self.matrix(1, 1, inputs[0].dtype), inputs)[0]

    def allowed(self, dtype: torch.dtype) -> Tolerance:
        """How far from it an output may be."""
        (one,) = tolerances(self.kernel, self.matrix(1, 1, dtype), 1)
        return one

    def compare(self, out: torch.Tensor, *inputs: torch.Tensor) -> None:
        """``check`` of a matrix of any shape."""
        self.comparison(*inputs)(out)

    def comparison(self, *inputs: torch.Tensor) -> Callable[..., None]:
        """``compare`` for several outputs of the same inputs, whose reference is computed once; a failure
        names the words of the output."""
        x = inputs[0]
        exact = self.exact(*inputs)
        rounded = exact.to(x.dtype)
        expected = torch.where(rounded.isinf(), rounded.double(), exact)
        allowed = self.allowed(x.dtype)

        def compare(out: torch.Tensor, **words: Any) -> None:
            torch.testing.assert_close(
                out.double(),
                expected,
                rtol=allowed.rtol,
                atol=allowed.atol,
                equal_nan=True,
                msg=lambda said: f"{words or ''} {said}",
            )
            assert (out.dtype, out.device) == (x.dtype, x.device)

        return compare


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, among which NaN equals itself."""
    return tensor.contiguous().view(torch.uint8) if tensor.dim() > 0 else tensor.reshape(1).view(torch.uint8)


def is_over_matrices(loaded: Loaded) -> bool:
    """Whether ``MatrixCase`` fits the kernel."""
    if set(loaded.kernel.dimensions()) != {"rows", "columns", "dtype"} or loaded.kernel.arguments:
        return False
    problem = loaded.kernel.problem(rows=3, columns=4)
    shapes = [shape for shape, _ in loaded.returned(problem, ())]
    return shapes == [(3, 4)] and loaded.inputs(problem, META, 0)[0].shape == (3, 4)


EVERY = [
    (MatrixCase if is_over_matrices(loaded) else Case)(loaded, provider)
    for loaded in EVERY_KERNEL
    for provider in loaded.kernel.providers
    if provider.package is None
]
"""Every provider but the peers, whose limits are their own."""
MATRICES = [case for case in EVERY if isinstance(case, MatrixCase)]

Some = TypeVar("Some", bound=Case)


def params(some: Iterable[Case]) -> list[ParameterSet]:
    """The cases as test parameters with readable ids."""
    return [
        pytest.param(case, id=f"{case.loaded.name}-{case.provider.name}", marks=together(case))
        for case in some
    ]


def together(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    """Marks that put all tests of one library, or of Inductor, into one process. On a GPU they are too many
    for one."""
    if ON_GPU:
        return (pytest.mark.slow,) if case.provider.compiled else ()
    if case.provider.extension is not None:
        return (pytest.mark.xdist_group(f"{case.loaded.name}/{case.provider.extension}"),)
    return (pytest.mark.slow, pytest.mark.xdist_group("inductor")) if case.provider.compiled else ()


def cases(where: Callable[[Case], bool] = lambda case: True, *, slow: bool = False) -> list[ParameterSet]:
    """This host's cases as test parameters, without those that compile slowly unless asked for."""
    return params(_chosen(EVERY, where, slow))


def matrix_cases(
    where: Callable[[MatrixCase], bool] = lambda case: True, *, slow: bool = False
) -> list[ParameterSet]:
    """The cases of kernels over matrices."""
    return params(_chosen(MATRICES, where, slow))


def _chosen(some: Iterable[Some], where: Callable[[Some], bool], slow: bool) -> Iterator[Some]:
    for case in some:
        if case.runs_here and where(case) and (slow or not case.compiles_slowly):
            yield case


def with_words(
    some: Iterable[ParameterSet],
    values: tuple[Any, ...] | None = None,
    *,
    others: tuple[Any, ...] | None = None,
) -> list[ParameterSet]:
    """Each case with each of its kernel's words; where there are values, the first words with each of them
    and the other words with ``others`` alone, or with the same if that is None."""
    found = []
    for one in some:
        for case in one.values:
            for index, words in enumerate(words_of(case.loaded)):
                chosen = values if index == 0 or others is None else others
                for value in [()] if chosen is None else [(one,) for one in chosen]:
                    shown_as = (getattr(part, "__name__", part) for part in value)
                    name = "-".join(map(str, (one.id, words.id, *shown_as)))
                    found.append(pytest.param(case, words.values[0], *value, id=name, marks=one.marks))
    return found


def with_values(
    some: Iterable[Case], chosen: Callable[[tuple[Value, ...]], Iterable[Value]]
) -> list[ParameterSet]:
    """Each case with those values of each of its parameters that are chosen."""
    return [
        pytest.param(
            case,
            name,
            value,
            id=f"{case.loaded.name}-{case.provider.name}-{name}-{shown(value)}",
            marks=together(case),
        )
        for case in some
        for name, variable in case.provider.variables().items()
        for value in chosen(variable.values or (variable.default or 1,))
    ]


def extremes(kernel: Kernel, dtype: torch.dtype) -> list[float]:
    """Numbers that go wrong first."""
    info = torch.finfo(dtype)
    largest = min(info.max, kernel.largest)
    large = (1e4, -1e4) if largest >= 1e4 else ()
    return [
        *(math.nan, math.inf, -math.inf, 0.0, -0.0),
        *(largest, -largest, info.tiny, info.smallest_normal / 4, info.eps, *large),
    ]
