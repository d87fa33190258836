"""What only a GPU's trace holds, through traces made by hand."""

from typing import Any

from pipeline import profile
from pipeline.inspection import launches, profiler
from pipeline.inspection.profiler import Profiled, a_call
from tests.pipeline.inspection.traces import kernel_event, trace_of_a_gpu


def test_the_sentence_names_what_a_call_launches() -> None:
    trace = trace_of_a_gpu()
    made = launches.parse(trace)
    assert profiler.nesting(trace) == (("aten::mul",), "aten::mul"), "the last call's"
    many = Profiled((), "", b"", tuple(made["bb"] * profiler.ACTIVE), ("aten::mul",), None, 5.0)
    assert profile.sentence(many, "cuda") == (
        "a call (aten::mul) launches 3 device kernels: mul x2, tanh; 8.00 us on the device, "
        "5.00 us on the host until the last launch"
    )
    assert [(one.name, one.launches, one.us) for one in a_call(many.launches)] == [
        ("mul", 2.0, 4.0),
        ("tanh", 1.0, 4.0),
    ]
    single = Profiled(
        (), "", b"", tuple(made["aa"] * profiler.ACTIVE), ("aten::square",), "aten::square > aten::pow", 20.0
    )
    assert profile.sentence(single, "cuda").startswith(
        "a call (aten::square > aten::pow) launches 1 device kernel: "
        "vectorized_elementwise_kernel<4, pow>; 3.50 us on the device"
    )


def test_host_time_ends_with_the_last_launch_and_is_the_median_call() -> None:
    """A launch that is no operator's, as Triton's is, counts; what follows it doesn't."""

    def host(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": ts, "dur": dur, "args": {}}

    def call(number: int, ts: float, launch_at: float) -> list[dict[str, Any]]:
        return [
            host("user_annotation", "point:aa", ts, 200.0),
            host("cpu_op", "aten::empty_like", ts + 2, 5.0),
            *kernel_event("_gelu_flat", number, ts + launch_at, 1.0),
            host("cuda_runtime", "cudaGetLastError", ts + 150, 1.0),
            host("cuda_runtime", "cudaDeviceSynchronize", ts + 160, 30.0),
        ]

    calls = [*call(1, 0.0, 85.0), *call(2, 300.0, 30.0), *call(3, 600.0, 40.0)]
    assert profiler.host_us({"traceEvents": calls}) == 45.0
    without = [event for event in calls if event["cat"] in ("user_annotation", "cpu_op")]
    assert profiler.host_us({"traceEvents": without}) == 5.0, "on a CPU the operators are the work"
