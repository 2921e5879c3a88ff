"""The law of sealed mode: whatever link and engine do, device and verifier agree on what a simple rule says.

Device core and verifier core are the real ones; the drafter's two views, the target, the link and the order of events
are drawn at random. Which side was first at a position never matters.
"""

from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from world import PLACEHOLDER, Sealed, SealedWorld, actions

from edgedraft_cloud.session import State

schedule = {
    "seed": st.integers(0, 255),
    "max_tokens": st.integers(1, 40),
    "window": st.integers(1, 8),
    "block": st.integers(1, 4),
    "run_ahead": st.sampled_from([0, 1, 4, 64]),
    "history": st.lists(actions, min_size=20, max_size=120),
}


@settings(max_examples=600, deadline=None)
@given(**schedule)
def test_the_text_is_what_the_rule_says_under_any_schedule(seed, max_tokens, window, block, run_ahead, history):
    world = SealedWorld(seed, max_tokens, window, block, run_ahead)
    expected = Sealed.reference(seed, max_tokens)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
        assert world.log.settled == expected.text[: len(world.log.settled)]
    world.run_out()
    assert world.log.settled == expected.text
    assert world.log.settled_wire == expected.wire
    assert world.given == expected.given
    assert world.session.state is State.FINISHED
    # A text that ends in a token that is held back goes on as the cloud sees it; the device has closed the session.
    assert world.session.tree.settled[: len(expected.wire)] == expected.wire


@settings(max_examples=300, deadline=None)
@given(**schedule, refused=st.lists(st.booleans(), min_size=1, max_size=40))
def test_both_sides_agree_where_tokens_are_held_back_at_the_last_moment(
    seed, max_tokens, window, block, run_ahead, history, refused
):
    """What is refused depends on what left before, so on the schedule; but not what the two sides make of it."""
    world = SealedWorld(seed, max_tokens, window, block, run_ahead)
    answers = cycle(refused)
    world.refuse = lambda node: next(answers)
    world.refuse_guess = lambda: next(answers)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
    world.run_out()
    log = world.log
    assert log.ended
    assert world.session.tree.settled[: len(log.settled_wire)] == log.settled_wire
    for token, wire, device_decided in zip(log.settled, log.settled_wire, world.given, strict=True):
        assert wire == token or (device_decided and wire == PLACEHOLDER)
