"""Launches as a GPU's trace holds them."""

import json
from typing import Any

import pytest

from pipeline.inspection import flame, launches, profiler
from tests.pipeline.inspection.traces import kernel_event, trace_of_a_gpu


def test_launches_belong_to_the_range_that_launched_them() -> None:
    found = launches.parse(trace_of_a_gpu())
    assert {key: [one.name for one in made] for key, made in found.items()} == {
        "aa": ["void at::native::vectorized_elementwise_kernel<4, pow>(int, float)"],
        "bb": ["mul", "tanh", "mul"],
    }
    (one,) = found["aa"]
    assert (one.threads, one.blocks, one.registers, one.shared, one.duration_us) == (128, 128, 22, 48, 3.5)


def test_a_range_of_the_providers_own_is_no_call_whatever_it_is_called() -> None:
    def host(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "tid": 1, "ts": ts, "dur": dur, "args": {}}

    events = []
    for begin in (0.0, 1000.0):
        events += [
            host("user_annotation", "point:its own", begin + 20, 40.0),
            host("user_annotation", "point:aa", begin, 200.0),
            host("cpu_op", "aten::mul", begin + 25, 10.0),
            host("cpu_op", "aten::add", begin + 70, 20.0),
            *kernel_event("mul", int(begin) + 1, begin + 30, 2.0),
            *kernel_event("add", int(begin) + 2, begin + 80, 2.0),
        ]
    trace = {"traceEvents": events}
    assert {key: [one.name for one in made] for key, made in launches.parse(trace).items()} == {
        "aa": ["mul", "add", "mul", "add"]
    }
    assert profiler.nesting(trace)[0] == ("aten::mul", "aten::add")
    assert profiler.host_us(trace) == 85
    assert flame.stacks(trace)[1] == 2


NAMES = [
    *("plain", 'a "quoted" name', '"', '{"a": [1, 2]}', 'x", "pid": 5, "tid": 3', "back\\slash", "a\tb\x07"),
    *('"pid": 5,', 'größe "ü"', 'escaped \\"so\\"'),
]


@pytest.mark.parametrize("on_one_line", [False, True], ids=["torch 2.13", "one line"])
def test_a_trace_is_read_whatever_its_names_hold(on_one_line: bool) -> None:
    """As torch writes them: a name is put between quotes as it is, and so are an operator's arguments."""
    space = " " if on_one_line else "\n    "
    lines = [
        f'{{"ph": "X",{space}"cat": "user_annotation",{space}"name": "{name}",{space}"pid": 1,{space}'
        f'"tid": 2,'
        f'\n    "ts": 1.5,\n    "dur": 2.5\n    ,\n    "args": {{\n      "correlation": {place}\n    }}\n}}'
        for place, name in enumerate(NAMES)
    ]
    lines.append('{"name": "aten::einsum",\n"args": {\n      "Concrete Inputs": ["of "two" words"]\n    }}')
    text = '{"traceEvents": [\n' + ",\n".join(lines) + "\n]}"
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)
    *events, einsum = json.loads(launches.whole(text.encode()))["traceEvents"]
    read = [event["name"] for event in events]
    assert read == [*NAMES[:-1], 'escaped "so"'], "one that another version has escaped is not escaped twice"
    assert [(event["pid"], event["tid"], event["ts"]) for event in events] == [(1, 2, 1.5)] * len(NAMES)
    assert [event["args"]["correlation"] for event in events] == list(range(len(NAMES)))
    assert einsum == {"name": "aten::einsum", "args": {}}
