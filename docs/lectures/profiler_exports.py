"""What else torch.profiler writes: a model's modules, stacks for a flame graph, a trace for TensorBoard."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

warnings.simplefilter("ignore")  # TorchScript is deprecated
model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8)).eval()
x = torch.randn(64, 512)
folder = Path("outputs/lectures/profiler")
folder.mkdir(parents=True, exist_ok=True)
verbose = _ExperimentalConfig(verbose=True)  # without it export_stacks writes an empty file


def recorded(called: nn.Module, **options: bool) -> profile:
    """A profile of the second call."""
    with torch.no_grad():
        called(x)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=verbose, **options) as profiler:
            called(x)
    return profiler


def modules(profiler: profile) -> str:
    """The modules that the trace names: as functions on the stack, and as the place of an operator."""
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    on_stack = {one["name"] for one in events if str(one.get("name")).startswith("nn.Module: ")}
    places = {one["args"]["Module Hierarchy"] for one in events if "Module Hierarchy" in one.get("args", {})}
    return f"{len(on_stack)} modules on the stack, {len(places)} places of operators"


scripted = torch.jit.script(model)
table = ["model        option          the trace has"]
for name, called in (("eager", model), ("TorchScript", scripted)):
    table.append(f"{name:13}with_stack      {modules(recorded(called, with_stack=True))}")
    table.append(f"{name:13}with_modules    {modules(recorded(called, with_modules=True))}")

stacks = folder / "stacks.txt"
recorded(model, with_stack=True).export_stacks(str(stacks), "self_cpu_time_total")
lines = [line for line in stacks.read_text().splitlines() if "<built-in_function_linear>" in line]
stack, _, us = lines[0].rpartition(" ")

with (
    torch.no_grad(),
    profile(
        activities=[ProfilerActivity.CPU],
        on_trace_ready=tensorboard_trace_handler(str(folder), worker_name="lecture"),
    ),
):
    model(x)
newest = max(folder.glob("lecture.*.pt.trace.json"), key=lambda path: path.stat().st_mtime)
print("\n".join(table))  # at the end: torch 2.13 logs each start of the profiler
print(f"{stacks}: a line for each stack, such as")
print(f"  ...;{';'.join(stack.split(';')[-3:])} {us}")
print(f"for TensorBoard: {newest.parent}/lecture.*.pt.trace.json, {len(newest.read_bytes()) // 1024} KiB")
