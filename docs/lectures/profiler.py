# %% [markdown]
# # 2. The profiler's table, schedule and trace
# %%
"""Torch.square under both of torch's profilers: the table, which steps are recorded, and the trace."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

on_gpu = torch.cuda.is_available()
x = torch.randn(1024, 1024, device="cuda" if on_gpu else "cpu")
activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
trace = Path("outputs/lectures/trace.json")
trace.parent.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# The older autograd profiler records everything within the `with` block. Its only output is the table.
# %%
with torch.autograd.profiler.profile(use_device="cuda" if on_gpu else None) as older:
    torch.square(x)
print("torch.autograd.profiler:")
print(older.key_averages().table(sort_by=f"self_{x.device.type}_time_total", row_limit=8))

# %% [markdown]
# torch.profiler has a schedule: one step passes with the profiler switched off (wait). In the next the
# profiler is on and its records are discarded, since switching it on costs time (warm-up). Two steps are kept
# (active).
# %%
plan = schedule(wait=1, warmup=1, active=2, repeat=1)
for step in range(4):
    print(f"step {step}: {plan(step).name}")


# %% [markdown]
# When the active steps are over, the profiler calls `on_trace_ready`.
# %%
def keep(profiler: profile) -> None:
    """Print the table and keep the trace."""
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(f"torch.profiler, at step {profiler.step_num}:")
    print(profiler.key_averages().table(sort_by=by, row_limit=8))
    profiler.export_chrome_trace(str(trace))


with profile(activities=activities, schedule=plan, on_trace_ready=keep) as profiler:
    for _ in range(4):
        torch.square(x)
        profiler.step()

# %% [markdown]
# The trace is JSON: one event for each operator, launch or kernel. https://ui.perfetto.dev draws it.
# %%
events = json.loads(trace.read_text())["traceEvents"]
steps = sorted({event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")})
print(f"{trace}: {', '.join(steps)}")
