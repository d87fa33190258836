import itertools
import random
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.execution.schedule import Schedule


def point(provider: str, size: int, dtype: str = "float32", rows: int | None = None) -> Point:
    problem = Values({"n": size, "dtype": dtype} | ({} if rows is None else {"rows": rows}))
    return Point(kernel="planted", provider=provider, problem=problem)


def test_a_point_waits_for_its_compiler_while_others_go_ahead() -> None:
    first, slow, quick = point("first", 1), point("slow", 1), point("quick", 2)
    compiling: Future[None] = Future()
    schedule = Schedule([first, slow, quick], {slow: compiling})
    assert schedule.next(0) == first
    assert schedule.next(0) == quick, "though slow comes before it"
    got: list[Point | None] = []
    thread = Thread(target=lambda: got.append(schedule.next(0)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert got == [], "nothing is handed out before it is compiled"
    compiling.set_result(None)
    thread.join()
    assert got == [slow]


def test_a_point_whose_compiler_failed_is_handed_out_with_the_reason() -> None:
    plain, broken = point("plain", 1), point("broken", 1)
    compiling: Future[None] = Future()
    schedule = Schedule([plain, broken], {broken: compiling})
    assert schedule.next(0) == plain and schedule.failure(plain) is None
    compiling.set_exception(UserError("cuda.cu does not compile"))
    assert schedule.next(0) == broken
    assert schedule.failure(broken) == "cuda.cu does not compile"


def test_a_compiler_that_failed_or_was_cancelled_holds_up_no_point() -> None:
    """The launch itself meets the error and reports it."""
    failed, cancelled = point("a", 1), point("b", 1)
    futures: dict[Point, Future[None]] = {failed: Future(), cancelled: Future()}
    futures[failed].set_exception(RuntimeError("planted"))
    futures[cancelled].cancel()
    schedule = Schedule([failed, cancelled], futures)
    assert [schedule.next(0) for _ in range(3)] == [failed, cancelled, None]


def test_what_waits_is_refilled_before_each_point_is_handed_out() -> None:
    """A search adds points when it knows more, to be compiled or not, and takes back what it asked for."""
    first, taken_back, added, compiled = point("first", 1), point("back", 1), point("added", 2), point("c", 1)
    compiling: dict[Point, Future[None]] = {}
    seen: list[list[Point]] = []

    def refill(waiting: Sequence[Point]) -> list[Point]:
        seen.append(list(waiting))
        if len(seen) == 2:
            compiling[compiled] = Future()
            return [added, compiled]
        return list(waiting)

    schedule = Schedule([first, taken_back], compiling, refill=refill)
    assert schedule.next(0) == first
    assert schedule.next(0) == added, "the other one is not compiled yet"
    compiling[compiled].set_result(None)
    assert [schedule.next(0), schedule.next(0)] == [compiled, None]
    assert seen == [[first, taken_back], [taken_back], [compiled], []]


def test_several_threads_get_each_point_once() -> None:
    points = [point(provider, size) for size in range(50) for provider in "abcd"]
    futures: dict[Point, Future[None]] = {p: Future() for p in points[::2]}
    schedule = Schedule(points, futures, workers=8)
    compilers = list(futures.values())
    random.Random(0).shuffle(compilers)

    def measure(worker: int) -> list[Point]:
        mine: list[Point] = []
        while (chosen := schedule.next(worker)) is not None:
            assert chosen not in futures or futures[chosen].done()
            mine.append(chosen)
        return mine

    with ThreadPoolExecutor(8) as threads:
        shares = [threads.submit(measure, worker) for worker in range(8)]
        for compiler in compilers:
            compiler.set_result(None)
        handed_out = [p for share in shares for p in share.result()]
    assert sorted(map(str, handed_out)) == sorted(map(str, points))


def test_a_schedule_over_many_points_hands_out_what_one_that_looks_at_all_would() -> None:
    """The rule as it is written: of what is ready the provider that is there, then those of nobody else."""
    for seed, workers in itertools.product(range(6), (1, 3, 8)):
        dice = random.Random(seed)
        points = [point(provider, size) for size in range(12) for provider in "abcde"]
        if seed % 2:
            dice.shuffle(points)
        schedule = Schedule(points, {}, workers=workers)
        waiting, last = list(points), [None] * workers
        for turn in range(len(points)):
            worker = dice.randrange(workers)
            others = {one for number, one in enumerate(last) if number != worker}
            expected = min(waiting, key=lambda one: (one.provider != last[worker], one.provider in others))
            assert schedule.next(worker) == expected, f"{workers} workers, seed {seed}, turn {turn}"
            waiting.remove(expected)
            last[worker] = expected.provider  # type: ignore[call-overload]
        assert schedule.next(0) is None
