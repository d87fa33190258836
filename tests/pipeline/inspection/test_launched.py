"""Launches of a call joined to a library's functions: by the provider's report and the profiler's names."""

from kernel_pipeline.records.measurement import Launch as Told
from pipeline.inspection.disassembler import Analysis, Resources
from pipeline.inspection.launches import DeviceLaunch as Seen
from pipeline.inspection.launches import joined
from pipeline.inspection.library import CudaFunction, known_name


def function(name: str, shared: int = 0) -> CudaFunction:
    return CudaFunction(name, "90", Analysis(name, Resources(registers=32, shared=shared, stack=0), ()), None)


FUNCTIONS = [
    function("rows<float, 4>"),
    function("rows<float, 8>", shared=64),
    function("rows<Half, 4>"),
    function("copy"),
]


def seen(name: str, threads: int = 128, shared: int = 0) -> Seen:
    return Seen(name=name, threads=threads, blocks=1, registers=0, shared=shared, duration_us=1.0)


def told(name: str, threads: tuple[int, ...] = (64, 2, 1), shared: int = 0) -> Told:
    return Told(function=name, strategy="held", grid=(9, 1, 1), block=threads, shared_bytes=shared)


ROWS_8 = "void ns::rows<float, (int)8 >(float const*)"
FOREIGN = "void at::native::copy_kernel<float>(float*)"


def test_the_profiler_says_which_of_a_templates_functions_was_launched() -> None:
    (one,) = joined([told("rows", shared=32)], [seen(FOREIGN), seen(ROWS_8, 999, 999)], FUNCTIONS)
    assert one.function is FUNCTIONS[1]
    assert (one.threads, one.dynamic, one.strategy) == (128, 32, "held"), "as the provider reports them"


def test_a_function_alone_needs_no_profiler() -> None:
    (one,) = joined([told("ns::copy")], [], FUNCTIONS)
    assert (one.function, one.name) == (FUNCTIONS[3], "ns::copy")


def test_of_several_functions_none_is_guessed() -> None:
    (one,) = joined([told("rows")], [], FUNCTIONS)
    assert (one.function, one.name) == (None, "rows")


def test_the_launches_of_a_template_are_told_in_their_order() -> None:
    names = ["void ns::rows<float, 8>(float*)", "void ns::rows<Half, 4>(Half*)"]
    made = joined([told("rows"), told("copy"), told("rows")], [seen(name) for name in names], FUNCTIONS)
    assert [one.function and one.function.name for one in made] == ["rows<float, 8>", "copy", "rows<Half, 4>"]


def test_a_provider_that_reports_nothing_leaves_it_to_the_profiler() -> None:
    first, second = joined([], [seen(FOREIGN), seen(ROWS_8, 256, 1064)], FUNCTIONS)
    assert (first.function, first.name) == (None, FOREIGN)
    assert second.function is FUNCTIONS[1]
    assert (second.threads, second.dynamic, second.strategy) == (256, 1000, None)


def test_names_of_a_function_agree_whoever_writes_them() -> None:
    written = (
        "void softmax::softmax_rows<c10::BFloat16, (int)8, (bool)1>(const T1 *, T1 *, long, long, long, int)",
        "softmax::softmax_rows<c10::BFloat16, 8, true>",
        "void softmax::softmax_rows<c10::BFloat16, 8, true>(c10::BFloat16 const*, c10::BFloat16*, long)",
    )
    assert {known_name(name) for name in written} == {"softmax_rows<BFloat16, 8, 1>"}
    assert known_name("void at::<unnamed>::rows<float, at::<unnamed>::Sum>(T1 *)") == "rows<float, Sum>"
    nested = (
        "void kernels::rows_of<float, 4, 2, true, layernorm::LayerNorm<float> >(kernels::Matrix<float>)",
        "void kernels::rows_of<float, 4, 2, (bool)1, layernorm::LayerNorm<float>>(kernels::Matrix<T1>)",
    )
    assert {known_name(name) for name in nested} == {"rows_of<float, 4, 2, 1, LayerNorm<float>>"}
