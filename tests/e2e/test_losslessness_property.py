"""The law that the product stands on: whatever link and engine do, the device ends up with the target's greedy output.

Device core and verifier core are the real ones; drafter, target, link and the order of events are drawn at random.
"""

from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from world import GuardedWorld, World, actions, greedy


@settings(max_examples=600, deadline=None)
@given(
    seed=st.integers(0, 255),
    max_tokens=st.integers(1, 24),
    window=st.integers(1, 8),
    block=st.integers(1, 4),
    run_ahead=st.sampled_from([0, 1, 4, 64]),
    history=st.lists(actions, max_size=120),
)
def test_the_output_is_the_targets_under_any_schedule(seed, max_tokens, window, block, run_ahead, history):
    world = World(seed, max_tokens, window, block, run_ahead)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
        assert world.log.settled == greedy(seed, max_tokens)[: len(world.log.settled)]
    world.run_out()
    assert world.log.settled == greedy(seed, max_tokens)
    assert world.session.tree.settled == world.log.settled
    usage = world.session.usage
    assert usage.accepted_tokens <= usage.drafted_tokens


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 255),
    max_tokens=st.integers(1, 24),
    window=st.integers(1, 8),
    block=st.integers(1, 4),
    run_ahead=st.sampled_from([0, 1, 4]),
    history=st.lists(actions, max_size=80),
    refused=st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_what_a_guard_holds_back_changes_nothing_where_the_target_decides(
    seed, max_tokens, window, block, run_ahead, history, refused
):
    """A placeholder takes its place as a draft that the target judges, so that nobody waits for the other."""
    world = GuardedWorld(seed, max_tokens, window, block, run_ahead)
    answers = cycle(refused)
    world.refuse = lambda node: next(answers)
    for name, *arguments in history:
        getattr(world, name)(*arguments)
    world.run_out()
    assert world.log.settled == world.log.settled_wire == greedy(seed, max_tokens)
