"""A worker that does not survive its point, hangs or fails: its supervisor has an outcome, and goes on."""

import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import cast

import psutil
import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution import child_process, fork_server, idle_threads
from kernel_pipeline.execution.child_process import ChildProcess
from kernel_pipeline.execution.protocol import Rate
from kernel_pipeline.execution.supervisor import BUSY, OWN, Supervisor
from kernel_pipeline.execution.workers import MOST_KEPT, Workers
from kernel_pipeline.machine import device, load
from kernel_pipeline.machine.reaper import INTERPRETERS
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Rates
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import inductor
from tests.kernel_pipeline.machine.test_load import spinning
from tests.planted import outside
from tests.project import wait_until

PLANTED = Path(__file__).parents[2] / "planted"
SETTINGS = TimingSettings(stopping="count", min_samples=3, cache="hot")


def faulty(provider: str) -> tuple[str, Point]:
    problem = Values({"elements": 64, "dtype": "float32"})
    return str(PLANTED / "faulty"), Point(kernel="faulty", provider=provider, problem=problem)


@pytest.mark.parametrize(
    ("ran", "waited", "does"),
    [(0.9, 0.0, True), (0.06, 0.9, True), (0.01, 0.9, False), (0.2, 0.1, False)],
    ids=["computes", "computes on a busy host", "wakes and waits on a busy host", "does little"],
)
def test_a_thread_that_waits_for_a_core_computes_only_if_it_also_runs(
    monkeypatch: pytest.MonkeyPatch, ran: float, waited: float, does: bool
) -> None:
    """By shares of a core, over a clock that sleeping turns."""
    now = [0.0]

    class Process:
        def threads(self) -> dict[int, load.Scheduled]:
            return {1: load.Scheduled(ran * now[0] * 1e6, waited * now[0] * 1e6)}

    def slept(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(idle_threads, "sleep", slept)
    monkeypatch.setattr(idle_threads, "perf_counter", lambda: now[0])
    assert idle_threads.compute(cast(ChildProcess, Process())) is does


@pytest.fixture(scope="module")
def worker() -> Iterator[Supervisor]:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as made:
        yield made
    # What was killed is gone once the system has come to it.
    wait_until(lambda: not processes())


def processes(of: str = "pipeline") -> list[int]:
    """Processes of this one that measure, or those whose command line has these words. The server from which
    those that inspect are forked stays, where another test has started it."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            words = " ".join(child.cmdline())
            if of in words and "forkserver" not in words:
                found.append(child.pid)
    return found


def workers(of: Supervisor) -> list[int]:
    """The process of the worker whose turn it is, if it runs: its reaper's only child."""
    now = of._workers._now
    if now is None or now._process is None:
        return []
    return [child.pid for child in psutil.Process(now._process.pid).children()]


def measured(worker: Supervisor, provider: str) -> Outcome:
    return worker.measure(*faulty(provider))


def test_one_worker_answers_as_long_as_it_lives(worker: Supervisor) -> None:
    first = measured(worker, "right")
    assert first.status == "ok"
    assert first.timing is not None
    assert (first.timing.timer, first.timing.n_samples) == ("perf_counter", 3)
    (pid,), (verifier,) = workers(worker), processes("kernel_pipeline.execution.verifier_process")
    where = r"tests/planted/faulty/torch\.py:\d+: "
    seen = {pid}
    for provider, status, error in (
        ("talkative", "ok", None),
        ("wrong", "incorrect", "first call: 1 of 64 elements are wrong"),
        ("remembers", "incorrect", "on other inputs: "),
        (
            "raises",
            "runtime_error",
            rf"{where}`raise RuntimeError\(.*`: RuntimeError: it broke in two lines$",
        ),
        ("memory_error", "out_of_memory", f"{where}`raise MemoryError`: MemoryError$"),
        ("right", "ok", None),
    ):
        for _ in range(2):
            outcome = measured(worker, provider)
            assert outcome.status == status
            assert re.match(str(error), str(outcome.error)), outcome.error
            seen |= set(workers(worker))
    assert len(seen) == 7, "each provider has a process, and keeps it as long as it survives"
    assert processes("kernel_pipeline.execution.verifier_process") == [verifier]
    assert worker.changes == {}


@pytest.mark.slow
def test_a_provider_that_is_kept_keeps_its_process() -> None:
    def met(made: Supervisor, *providers: str) -> list[int]:
        return [(measured(made, provider).status == "ok" and workers(made)[0]) or 0 for provider in providers]

    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as made:
        made.keep(*faulty("right"))
        first, second, again, other = met(made, "right", "talkative", "right", "talkative")
        assert first == again and len({first, second, other}) == 3


@pytest.mark.slow
def test_processes_that_were_launched_wait_for_the_first_point_and_their_server_is_replaced() -> None:
    others = set(processes())
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as made:
        made.launch()
        # The verifier; the server that workers are forked from, a reaper and a worker.
        wait_until(lambda: len(set(processes()) - others) == 4)
        launched = set(processes()) - others
        assert workers(made) and measured(made, "right").status == "ok"
        assert set(processes()) - others > launched, "and the next worker is there"
        # The server is started again when it dies.
        assert made._server._server is not None
        made._server._server.kill()
        wait_until(lambda: not workers(made))
        outcome = measured(made, "right")
        assert (outcome.status, outcome.error) == ("runtime_error", "the worker was killed by SIGKILL")
        assert [measured(made, name).status for name in ("right", "talkative", "right")] == ["ok"] * 3


def test_a_worker_that_ends_is_said_and_replaced(worker: Supervisor) -> None:
    measured(worker, "talkative")
    (pid,) = workers(worker)
    outcome = measured(worker, "exits")
    said = "the worker exited with 3"
    assert (outcome.status, outcome.error) == ("runtime_error", said), "no words of an earlier point's"
    assert workers(worker) == []
    assert measured(worker, "right").status == "ok"
    assert workers(worker) != [pid]


def outside_provider(folder: Path, source: str) -> tuple[str, Point]:
    """A kernel of its own whose provider ``whole`` is the source."""
    where = outside.write(folder)
    (where / "whole.py").write_text(f"import os, sys, time, torch\n{source}")
    problem = Values({"n": 4096, "dtype": "float32"})
    return str(where), Point(kernel="double", provider="whole", problem=problem)


NO_MEMORY = "torch.AcceleratorError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`."


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_worker_that_ended_without_memory_is_tried_again_after_a_release(
    worker: Supervisor, tmp_path: Path, is_lasting: bool
) -> None:
    tried = tmp_path / "tried"
    source = (
        "def double(x):\n"
        f"    if {is_lasting} or not os.path.exists({str(tried)!r}):\n"
        f"        open({str(tried)!r}, 'w').close()\n"
        f"        print({NO_MEMORY!r}, file=sys.stderr, flush=True)\n"
        "        os._exit(1)\n"
        "    return x * 2\n"
    )
    outcome = worker.measure(*outside_provider(tmp_path, source))
    said = f"the worker exited with 1: {NO_MEMORY.splitlines()[0]}"
    assert (outcome.status, outcome.error) == (("out_of_memory", said) if is_lasting else ("ok", None))


def test_a_worker_whose_child_lives_on_is_noticed_at_once_and_the_child_ends(
    worker: Supervisor, tmp_path: Path
) -> None:
    """A child of a session of its own, which holds the worker's end of the socket."""
    told = tmp_path / "child"
    outcome = worker.measure(
        *outside_provider(
            tmp_path,
            "def double(x):\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            f"        open({str(told)!r}, 'w').write(str(os.getpid()))\n"
            "        time.sleep(1000)\n"
            f"    while not os.path.exists({str(told)!r}):\n"
            "        pass\n"
            "    os._exit(0)\n",
        )
    )
    assert (outcome.status, outcome.error) == ("runtime_error", "the worker exited with 0")
    assert not psutil.pid_exists(int(told.read_text()))


def test_a_provider_that_prints_without_end_fills_no_disk(worker: Supervisor, tmp_path: Path) -> None:
    outcome = worker.measure(
        *outside_provider(
            tmp_path,
            "line = 'x' * (1 << 20)\n"
            "def double(x):\n"
            "    if not hasattr(double, 'printed'):\n"
            "        double.printed = [print(line, flush=True) for _ in range(300)]\n"
            "        time.sleep(1)\n"
            "    return x * 2\n",
        )
    )
    assert outcome.status == "ok", outcome.error
    (pid,) = workers(worker)
    assert Path(f"/proc/{pid}/fd/1").stat().st_size <= child_process.MOST_PRINTED


def test_a_worker_that_does_not_give_its_memory_back_is_given_up(
    worker: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(worker, "right").status == "ok"
    for pid in workers(worker):
        os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "timeout_s", 0.5)
        worker.release()
    assert workers(worker) == []
    assert measured(worker, "right").status == "ok"


class Idle:
    """A worker that does nothing."""

    is_running = is_alive = True

    def begin(self) -> None: ...

    def end(self) -> None: ...


def test_a_worker_that_waits_keeps_little_memory_and_one_that_ends_none() -> None:
    """Those of finals wait, and hold outputs of tens of GB otherwise."""
    left: list[tuple[object, int]] = []
    made = Workers(Idle, 2, lambda *one: left.append(one))  # type: ignore[arg-type]
    for provider in ("one", "two", "one", "three", "four"):
        made.turn_to(("double", provider))
    one, two, three = (left[at][0] for at in (0, 1, 3))
    assert left == [(one, MOST_KEPT), (two, MOST_KEPT), (one, MOST_KEPT), (three, MOST_KEPT), (two, 0)]


CHANGES = {
    "import threading; threading.Thread(target=time.sleep, args=[99], daemon=True).start()": (
        "thread Thread-",
        "ok",
    ),
    "is_child = os.fork() == 0\nif is_child:\n    os.fork() or time.sleep(99)\n    os._exit(0)\nos.wait()": (
        "1 processes are running",
        "ok",
    ),
    "time.perf_counter = lambda: 0.0": ("time.perf_counter", "incorrect"),
    "torch.empty_like = torch.zeros_like; torch.empty = torch.zeros": ("torch.empty", "incorrect"),
    "import kernel_pipeline.timing.stopwatch as s; s.COLD_FACTOR = 1": (
        "kernel_pipeline.timing.stopwatch.COLD_FACTOR",
        "incorrect",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.split("(")[0].split(" ")[0])
def test_a_worker_that_a_provider_changed_is_replaced_and_it_is_said(
    worker: Supervisor, tmp_path: Path, change: str
) -> None:
    what, status = CHANGES[change]
    worker.changes.clear()
    outcome = worker.measure(*outside_provider(tmp_path, f"{change}\ndef double(x):\n    return x * 2\n"))
    assert outcome.status == status, outcome.error
    assert worker.changes["whole"].startswith(what)
    assert workers(worker) == []
    if status == "incorrect":
        assert str(outcome.error).startswith(f"replaced {what}")
        assert str(outcome.error).endswith(", which the timing rests on")
    assert measured(worker, "right").status == "ok"


def test_finals_ask_how_right_a_provider_is_and_whether_it_repeats_itself(
    worker: Supervisor, tmp_path: Path
) -> None:
    where, point = outside_provider(tmp_path, "def double(x):\n    return x * 2\n")
    assert worker.measure(where, point).status == "ok"
    found = worker.extra(where, point, None)
    assert found.sustained is None and found.accuracy is not None
    assert (found.accuracy.ulp_median, found.accuracy.ulp_worst, found.accuracy.repeats) == (0.0, 0.0, True)
    noisy = "def double(x):\n    y = x * 2\n    return torch.nextafter(y, y + torch.randn_like(y))\n"
    (other := tmp_path / "noisy").mkdir()
    found = worker.extra(*outside_provider(other, noisy), None)
    assert found.accuracy is not None and not found.accuracy.repeats
    assert 0 < found.accuracy.ulp_median <= found.accuracy.ulp_worst <= 1


class Counters:
    """What the kernel says of a worker's threads, look by look: for how long they waited of each second."""

    def __init__(self, waited: Sequence[float]) -> None:
        self.looks = [*itertools.chain.from_iterable((0.0, share) for share in waited)]

    def __call__(self) -> load.Threads:
        if not self.looks:
            return {}  # a look at what it does while nothing is asked of it
        share = self.looks.pop(0)
        return {1: load.Scheduled(1e6 * (share > 0) * (1 - share), 1e6 * share, round(10 * share))}


@pytest.mark.parametrize(
    ("waited", "delay", "valid"), [((0.04,), 0.04, True), ((0.3, 0.01), 0.01, True), ((0.3, 0.2), 0.2, False)]
)
def test_a_time_without_cores_is_taken_again_once_and_then_marked(
    worker: Supervisor, monkeypatch: pytest.MonkeyPatch, waited: tuple[float, ...], delay: float, valid: bool
) -> None:
    measured(worker, "right")  # its first time is audited
    counters = Counters(waited)
    monkeypatch.setattr(worker, "heeds_load", True)
    monkeypatch.setattr(worker, "_quiet", None)
    monkeypatch.setattr(idle_threads, "compute", lambda worker: False)
    monkeypatch.setattr(worker._workers.now, "threads", counters)
    monkeypatch.setattr(worker._audited, "wants", lambda *time: False)
    outcome = measured(worker, "right")
    assert outcome.state is not None and outcome.timing is not None
    assert outcome.state.run_delay == pytest.approx(delay)
    assert outcome.state.involuntary_switches == round(10 * delay)
    assert (outcome.state.valid, outcome.state.invalid_reason is None) == (valid, valid)
    assert counters.looks == [], "no look more than that"


@pytest.mark.parametrize(
    ("waited", "is_disturbed", "copy_gbps", "known"),
    [
        ((0.04,), False, 1.0, {"float32": 3.0}),
        ((0.3, 0.2, 0.0), False, 9.0, {"float32": 4.0, "bfloat16": 2.0}),
        ((0.3, 0.2, 0.1, 0.2), True, 9.0, {"float32": 4.0, "bfloat16": 2.0}),
    ],
)
def test_ceilings_without_cores_are_measured_again_and_then_marked(
    worker: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    waited: tuple[float, ...],
    is_disturbed: bool,
    copy_gbps: float,
    known: dict[str, float],
) -> None:
    rates = iter(
        [
            Rates(copy_gbps=1.0, matmul_tflops={"float32": 3.0}),
            Rates(copy_gbps=9.0, matmul_tflops={"float32": 1.0, "bfloat16": 2.0}),
            Rates(copy_gbps=8.0, matmul_tflops={"float32": 4.0, "bfloat16": 1.0}),
            Rates(copy_gbps=2.0, matmul_tflops={"float32": 1.0}),
        ]
    )
    worker._turn_to(None)
    asked = worker._workers.now.ask
    monkeypatch.setattr(
        worker._workers.now,
        "ask",
        lambda request, *rest: next(rates) if isinstance(request, Rate) else asked(request, *rest),
    )
    counters = Counters(waited)
    monkeypatch.setattr(worker._workers.now, "threads", counters)
    found, was_disturbed = worker.rates()
    assert (was_disturbed, found.copy_gbps, found.matmul_tflops) == (is_disturbed, copy_gbps, known)
    assert counters.looks == [], "no look more than that"


@pytest.mark.slow
def test_a_time_beside_busy_neighbours_is_marked() -> None:
    """Two that never rest on the worker's core: it has a third of it at most."""
    core = min(os.sched_getaffinity(0))
    settings = TimingSettings(stopping="budget", max_seconds=0.3, min_samples=3, cache="hot")
    with Supervisor(device.cpu(), settings, seed=0, timeout_s=60.0, heeds_load=True) as worker:
        assert measured(worker, "right").status == "ok"
        (pid,) = workers(worker)
        if not load.threads_of(pid):
            pytest.skip("this kernel does not count it")
        for thread in load.threads_of(pid):
            os.sched_setaffinity(thread, {core})
        with spinning(core, 2):
            outcome = measured(worker, "right")
    assert outcome.state is not None
    assert (outcome.state.valid, outcome.state.invalid_reason) == (False, BUSY)
    assert outcome.state.run_delay is not None and outcome.state.run_delay > 0.3


SPINS = """
def double(x):
    if not hasattr(double, 'begun'):
        double.begun = [start() for _ in range(2 * len(os.sched_getaffinity(0)))]
    return x * 2
"""

NATIVE = """
#include <thread>
extern "C" void start() { std::thread([] { for (volatile long i = 0;; i = i + 1) {} }).detach(); }
"""


def spins(folder: Path) -> str:
    """A provider that starts two native threads for each core, which never rest."""
    source, library = folder / "spin.cpp", folder / "spin.so"
    source.write_text(NATIVE)
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
    return f"import ctypes\nstart = ctypes.CDLL({str(library)!r}).start\n{SPINS}"


@pytest.mark.slow
def test_a_machine_that_a_providers_own_threads_keep_busy_is_its_fault(tmp_path: Path) -> None:
    settings = TimingSettings(stopping="budget", max_seconds=0.2, min_samples=3, cache="hot")
    where, point = outside_provider(tmp_path, spins(tmp_path))
    with Supervisor(device.cpu(), settings, seed=0, timeout_s=60.0, heeds_load=True) as worker:
        outcome = worker.measure(where, point)
        if not load.threads_of(os.getpid()):
            pytest.skip("this kernel does not count it")
        assert (outcome.status, outcome.error) == ("incorrect", OWN), outcome.state
        assert worker.measure(where, point).status == "incorrect"
        assert worker.changes["whole"] == OWN, "its process was replaced before it was asked again"
        assert measured(worker, "right").status == "ok"


@pytest.mark.slow
def test_a_process_that_judges_and_dies_is_said_and_replaced(worker: Supervisor) -> None:
    measured(worker, "right")
    (verifier,) = processes("kernel_pipeline.execution.verifier_process")
    os.kill(verifier, signal.SIGKILL)
    while Path(f"/proc/{verifier}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        sleep(0.01)  # it is gone before it is asked
    outcome = measured(worker, "right")
    assert (outcome.status, outcome.error) == ("runtime_error", "the verifier was killed by SIGKILL")
    assert measured(worker, "right").status == "ok"


def test_a_worker_that_hangs_is_given_up(
    worker: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(worker, "right")
    monkeypatch.setattr(worker, "timeout_s", 0.5)
    problem = Values({"n": 8, "dtype": "float32"})
    folder = outside.write(tmp_path)
    (folder / "whole.py").write_text("def double(x):\n    while True:\n        pass\n")
    outcome = worker.measure(str(folder), Point(kernel="double", provider="whole", problem=problem))
    assert (outcome.status, outcome.error) == ("timeout", "no answer in 0.5 s; its worker was replaced")
    assert workers(worker) == []


def test_a_worker_that_can_not_start_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "kernel_pipeline" / "execution"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    for name in ("fork_server.py", "verifier_process.py"):
        (folder / name).write_text("raise SystemExit('no torch here')")
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0, root=tmp_path) as broken:
        outcome = measured(broken, "right")
        assert (outcome.status, outcome.error) == (
            "runtime_error",
            "the verifier exited with 1: no torch here",
        )
        said = "the worker exited with 1: no torch here"
        with pytest.raises(UserError, match=rf"^the ceilings of .* could not be measured: {said}\.$"):
            broken.rates()


def test_who_waits_for_an_abandoned_worker_learns_that_it_is_gone() -> None:
    with Supervisor(device.cpu(), SETTINGS, seed=0, timeout_s=60.0) as worker:
        worker.start()
        found: list[Outcome] = []
        waiting = Thread(target=lambda: found.append(measured(worker, "right")))
        waiting.start()
        worker.abandon()
        waiting.join()
    ((status, error),) = [(one.status, one.error) for one in found]
    assert status == "runtime_error"
    assert error in ("the worker was killed by SIGKILL", "the verifier was killed by SIGTERM")


def test_a_worker_is_told_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    class Popen:
        pid = os.getpid()

        def __init__(self, words: list[str], env: dict[str, str], **rest: object) -> None:
            if "kernel_pipeline.execution.fork_server" in words:
                seen.append(env)

        def terminate(self) -> None:
            pass

        wait = kill = terminate

    monkeypatch.setattr(fork_server.subprocess, "Popen", Popen)
    monkeypatch.setattr(inductor, "variables", dict)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for name in INTERPRETERS:
        monkeypatch.delenv(name, raising=False)
    gpu = device.Device(kind="cuda", name="GPU", index=1, uuid="GPU-planted")
    for where in (device.cpu(), gpu):
        with Supervisor(where, SETTINGS, 0, 1.0) as worker:
            worker.start()
    cpu_env, gpu_env = seen
    assert cpu_env["CUDA_VISIBLE_DEVICES"] == ""
    assert cpu_env["TRITON_INTERPRET"] == cpu_env["NUMBA_ENABLE_CUDASIM"] == "1"
    assert gpu_env["CUDA_VISIBLE_DEVICES"] == "GPU-planted"
    assert not INTERPRETERS.keys() & gpu_env.keys()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7", "its own environment stays"
