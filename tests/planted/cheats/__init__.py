"""sin(pi x) / (pi x) of each element of a vector, by providers that each cheat in another way.

One provider a family of cheat. Between them stand honest ones, and ones that look whether an earlier provider
left anything behind. It costs a CPU many times what a copy does, so that who copies gains. The vector is
short enough for one thread: on a busy machine several would wait for each other far longer than they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Kernel, Provider, Tolerance, Work, bytes_of, one_of


@dataclass(frozen=True, kw_only=True)
class Vector:
    elements: int
    dtype: str = one_of("float32")


def work(problem: Vector) -> Work:
    shape = (problem.elements,)
    return Work(bytes_of(problem.dtype, shape, shape), {problem.dtype: problem.elements})


def tolerance(problem: Vector) -> Tolerance:
    return Tolerance(rtol=1e-5, atol=1e-6)


CACHES = (
    *("by_pointer", "by_shape", "by_identity", "by_version", "by_few_elements", "by_contents"),
    *("first_call_only", "first_four_calls", "one_call_in_eight", "idle_when_hurried", "looks_ahead"),
)
SKIPS = ("by_fingerprint", "one_call_in_three", "a_third_of_the_work", "keeps_the_cores_busy", "works_ahead")
OUTPUTS = (
    *("lazy_subclass", "lazy_methods", "sparse", "wrong_dtype", "wrong_shape", "wrong_device"),
    *("half_precision", "over_its_input", "changes_its_input", "freed_answer"),
)
CLOCKS = ("stops_the_clocks", "slows_the_clocks", "divides_the_samples", "divides_the_summary")
VERIFIERS = (
    "patches_compare",
    "patches_equal",
    "patches_copy",
    "patches_empty",
    "unpoisons_memory",
    "patches_the_reference",
)
PEEKS = ("reads_the_frames", "reads_the_heap", "overwrites_the_reference", "imports_the_reference")
THREADS = ("finishes_later", "queues_its_work")
FORGERS = ("edits_the_reply", "forges_a_reply", "forges_and_exits", "forges_later", "child_forges")
PROCESSES = ("exits_at_once", "child_holds_the_socket", "child_survives", "daemon_survives", "prints")
GPU = (
    *("on_a_side_stream", "leaves_a_stream", "nothing_in_a_graph", "patches_elapsed_time", "patches_replay"),
    *("patches_synchronize", "keeps_the_cache", "limits_the_allocator"),
)
SKIPS_ON_A_GPU = ("computes_in_a_graph", "fingerprint_in_a_graph", "third_in_a_graph")


def providers() -> list[Provider]:
    """Honest ones first and last; who looks for what was left stands right behind those that leave it."""
    found = [Provider("honest", "torch_honest.py:honest")]
    for file, names in {
        "caches": CACHES,
        "skips": SKIPS,
        "outputs": OUTPUTS,
        "peeks": PEEKS,
        "threads": THREADS,
        "clocks": CLOCKS,
        "verifiers": VERIFIERS,
        "forgers": FORGERS,
        "processes": PROCESSES,
    }.items():
        found += [Provider(name, f"torch_{file}.py:{name}") for name in names]
        found.append(Provider(f"after_{file}", "torch_honest.py:finds_nothing_left"))
    found += [
        Provider("leaves_settings", "torch_settings.py:leaves_settings"),
        Provider("after_settings", "torch_honest.py:finds_nothing_left"),
    ]
    for name in SKIPS_ON_A_GPU:
        found.append(Provider(name, f"triton_skips.py:{name}", devices=("cuda",)))
    for name in GPU:
        found.append(Provider(name, f"torch_gpu.py:{name}", devices=("cuda",)))
    found += [
        Provider("after_gpu", "torch_honest.py:finds_nothing_left", devices=("cuda",)),
        Provider("sleeps", "torch_processes.py:sleeps"),
        Provider("honest_at_the_end", "torch_honest.py:honest"),
    ]
    return found


kernel = Kernel(
    problem=Vector,
    size=("elements",),
    work=work,
    tolerance=tolerance,
    providers=providers(),
    baseline="honest",
)
