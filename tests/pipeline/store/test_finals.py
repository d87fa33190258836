"""Which run's finals count at a problem."""

from pipeline.store import finals
from pipeline.store.finals import Final
from tests import factory

CUDA, TORCH = (factory.measurement("softmax", name, 1024) for name in ("cuda", "torch"))


def run(name: str, rounds: int, **sources: str) -> list[Final]:
    """Finals of two providers in a number of rounds."""
    found = []
    for row in (CUDA, TORCH):
        final = factory.final(row, 2.0, run=f"20260901T120000Z-{name * 6}").replace(rounds_us=(2.0,) * rounds)
        if source := sources.get(row.point.provider):
            parts = final.parts.replace(source=source * 16)
            final = final.replace(parts=parts, key=parts.key)
        found.append(final)
    return found


def test_the_last_run_counts_unless_it_has_one_round_and_an_earlier_one_more_of_the_same() -> None:
    long, short, edited = run("a", 3), run("b", 1), run("c", 1, cuda="0")
    of_torch = run("d", 3)[1:]
    for before, last, expected in (
        (long, run("b", 2), "the last"),
        (short, long, "the last"),
        (long, short, "the one before"),
        (long, edited, "the last"),
        (of_torch, short, "the last"),  # the earlier run lacks a provider
    ):
        counting = last if expected == "the last" else before
        assert finals.newest([*before, *last]) == counting
        assert finals.newest_with_ours([*before, *last]) == counting
    assert finals.newest_with_ours([*long, *of_torch]) == long
    assert finals.newest([*long, *short, *edited]) == edited
    again = run("e", 2)
    assert finals.newest([*long, *again, *short]) == again, "the later of two"
    assert finals.of_last_run([*long, *again, *short]) == short
    sustained = [row.replace(power="sustained") for row in long]
    assert finals.newest(sustained) == sustained
