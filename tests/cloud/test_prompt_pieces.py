"""Prompts share what a step may read: all of it is used, and no long one takes what a short one needs."""

from hypothesis import given
from hypothesis import strategies as st

from edgedraft_cloud.engines.prompts import piece


@given(unread=st.lists(st.integers(1, 2000), min_size=1, max_size=40), room=st.integers(1, 600))
def test_all_of_the_room_is_used_and_each_has_its_even_share(unread, room):
    most = piece(unread, room)
    read = sum(min(tokens, most) for tokens in unread)
    assert most >= max(1, room // len(unread))
    if room >= len(unread):
        assert min(sum(unread), room) <= read < room + len(unread), "all of it, and the rest is rounding"


def test_the_only_prompt_has_it_all():
    assert piece([1000], 64) == 64
    assert piece([], 64) == 64


def test_a_short_prompt_is_read_at_once_whatever_waits():
    assert piece([4, 1000, 1000], 64) == 30
