"""The sides that the options of a comparison name."""

import pytest

from kernel_pipeline.errors import UserError
from pipeline.points import catalog
from pipeline.verdicts import opponents
from pipeline.verdicts.opponents import Named

PAIR = ("triton_row/4w", "triton_row/8w")


def test_a_commit_is_named_by_its_hash_and_other_sides_by_their_text() -> None:
    assert Named("HEAD", commit="0123456789abcdef").name == "0123456789ab"
    assert (Named("tree").name, Named("env:triton==3.6.0").name) == ("tree", "env:triton==3.6.0")
    assert tuple(one.name for one in opponents.both(catalog.find("softmax"), *PAIR)) == PAIR


def test_a_configuration_is_compared_with_another_one_only() -> None:
    for other in ("tree", "env:triton==3.6.0"):
        with pytest.raises(UserError, match="write two commits, two configurations, two environments"):
            opponents.both(catalog.find("softmax"), PAIR[0], other)
