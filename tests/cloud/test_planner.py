"""What goes into a step: drafts before decoding, never more than the room, and nobody held up by another's limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome
from edgedraft_cloud.planner import QUEUE_SHARE, READ_A_TOKEN, Part, Planner
from edgedraft_cloud.session import Session, SessionLimits, State
from edgedraft_cloud.step_times import StepTimes
from edgedraft_cloud.tenants import Tenant

BLOCK = 8
WINDOW = 32
LIMITS = SessionLimits(
    frames=FrameLimits(vocab_size=1000, context_length=10**6, max_block=BLOCK),
    max_tokens=10**6,
    context_room=10**6,
    stop_tokens=frozenset(),
    window=WINDOW,
    run_ahead=10**6,
)


class House:
    """A planner and its sessions; the target takes of each work what it is told."""

    def __init__(self, room: int) -> None:
        self.planner = Planner(StepTimes(4096, room), WINDOW)
        self.sessions: dict[str, Session] = {}
        self.tenants: dict[str, Tenant] = {}
        self.settled: dict[str, int] = {}

    def join(self, name: str, tenant: Tenant, *, background: bool = False) -> Session:
        session = Session(name, LIMITS, (1,))
        self.sessions[name], self.tenants[name] = session, tenant
        self.planner.join(session, tenant, background=background)
        session.apply(Outcome(name, (5,), 0), now=0.0, queue_seconds=0.0, verify_seconds=0.0)
        self.planner.update(name)
        return session

    def draft(self, name: str, count: int, now: float = 0.0) -> None:
        """A device sends blocks that make up so many tokens."""
        session = self.sessions[name]
        settled, pending = len(session.tree.settled), session.tree.pending
        for start in range(0, count, BLOCK):
            tokens = [7] * min(BLOCK, count - start)
            position = settled + pending + start
            draft = pb.Draft(block=session.tree.last_block + 1, tokens=tokens, position=position)
            if not pending and not start:
                draft.parent = 0
            session.receive(pb.ClientFrame(draft=draft), now)
        self.planner.update(name)

    def plan(self, now: float = 0.0) -> dict[str, Part]:
        return {part.work.session: part for part in self.planner.plan(now)}

    def finish(self, parts: dict[str, Part], now: float = 0.0) -> None:
        """The step has ended, and the target has taken every draft."""
        for name, part in parts.items():
            tokens = (*part.work.tokens, 7)
            outcome = Outcome(name, tokens, len(tokens) - 1, len(tokens) - 1)
            self.sessions[name].apply(outcome, now=now, queue_seconds=0.0, verify_seconds=0.0)
            self.planner.settle(name, len(tokens), len(tokens), now)
            self.planner.update(name)
            tenant = self.tenants[name].name
            self.settled[tenant] = self.settled.get(tenant, 0) + len(tokens)


def rows(parts: dict[str, Part]) -> int:
    return sum(len(part.work.tokens) + 1 for part in parts.values())


ACME = Tenant("acme")


# ---------------------------------------------------------------- one step


@settings(max_examples=200)
@given(
    room=st.integers(2, 60),
    sessions=st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.booleans()), max_size=15),
)
def test_drafts_go_first_and_there_are_never_more_rows_than_the_room(room, sessions):
    house = House(room)
    for number, (drafted, tenant, background) in enumerate(sessions):
        house.join(f"s{number}", Tenant(tenant), background=background)
        if drafted:
            house.draft(f"s{number}", drafted)
    parts = house.plan()
    assert rows(parts) <= room
    drafting = {f"s{number}" for number, (drafted, *_) in enumerate(sessions) if drafted}
    left = drafting - parts.keys()
    if left:
        assert rows(parts) >= room - 1, "room is left for drafts that wait"
        assert parts.keys() <= drafting, "a full house decodes nothing"
    else:
        served = len(parts) - len(drafting)
        assert served == min(len(sessions) - len(drafting), room - rows(parts) + served), "nobody stands still"
    for name, part in parts.items():
        assert (len(part.work.tokens) > 0) == (name in drafting)
        assert house.sessions[name].state is State.WORKING
    assert house.plan().keys().isdisjoint(parts), "one work at a time"


def test_a_chain_is_cut_to_the_room_and_its_rest_goes_next():
    house = House(6)
    house.join("a", ACME)
    house.draft("a", 8)
    parts = house.plan()
    assert len(parts["a"].work.tokens) == 5
    house.finish(parts)
    assert len(house.plan()["a"].work.tokens) == 2, "the target's own token was the sixth draft"


def test_what_drafts_leave_is_filled_with_decoding():
    house = House(5)
    for name in "abcdef":
        house.join(name, ACME)
    house.draft("d", 2)
    parts = house.plan()
    assert len(parts) == 3
    assert len(parts["d"].work.tokens) == 2
    assert rows(parts) == 5


def test_who_has_nothing_to_do_takes_no_step():
    house = House(100)
    house.join("a", ACME)
    house.planner.pause("a")
    assert house.plan() == {}
    house.planner.update("a")
    assert house.plan().keys() == {"a"}
    house.planner.leave("a")
    assert house.plan() == {}
    house.planner.settle("a", 5, 5, 0.0)


def test_a_part_says_how_long_its_drafts_have_waited():
    house = House(100)
    house.join("a", ACME)
    house.join("b", ACME)
    house.draft("a", 3, now=10.0)
    parts = house.plan(10.25)
    assert (parts["a"].waited, parts["b"].waited) == (0.25, 0.0)


def test_interactive_sessions_of_a_tenant_go_before_its_background():
    house = House(9)
    house.join("background", ACME, background=True)
    house.draft("background", 8)
    for _ in range(3):
        if "i" not in house.sessions:
            house.join("i", ACME)
        house.draft("i", 8)
        parts = house.plan()
        assert parts.keys() == {"i"}
        house.finish(parts)
    assert house.plan().keys() == {"background"}


# ---------------------------------------------------------------- over many steps


@pytest.mark.parametrize(("weight", "crowd"), [(1.0, 20), (3.0, 20), (3.0, 3), (3.0, 2)])
def test_tenants_are_served_by_weight_whatever_their_sessions_and_blocks(weight, crowd):
    house = House(40)
    for number in range(10):
        house.join(f"a{number}", Tenant("a", weight=weight))
    for number in range(crowd):
        house.join(f"b{number}", Tenant("b"))
    for _ in range(400):
        for name, session in house.sessions.items():
            if session.state is State.PARKED and not session.tree.pending:
                house.draft(name, 8 if name[0] == "a" else 3)
        house.finish(house.plan())
    # Two sessions with blocks of four rows use eight of the forty, less than their quarter.
    expected = weight if crowd > 2 else 32 / 8
    assert house.settled["a"] / house.settled["b"] == pytest.approx(expected, rel=0.05)


def test_what_is_charged_is_what_was_settled_not_what_was_drafted():
    """One whose drafts are always wrong pays for a token a step, and so gets as many tokens as the other."""
    house = House(9)
    settled = {"right": 0, "wrong": 0}
    for name in settled:
        house.join(name, Tenant(name))
    for _ in range(600):
        for name, session in house.sessions.items():
            if session.state is State.PARKED and not session.tree.pending:
                house.draft(name, 8)
        for name, part in house.plan().items():
            tokens = (*part.work.tokens, 7) if name == "right" else (9,)
            outcome = Outcome(name, tokens, len(tokens) - 1, len(part.work.tokens))
            house.sessions[name].apply(outcome, now=0.0, queue_seconds=0.0, verify_seconds=0.0)
            house.planner.settle(name, len(tokens), len(tokens), 0.0)
            house.planner.update(name)
            settled[name] += len(tokens)
    assert settled["right"] == pytest.approx(settled["wrong"], rel=0.1)


def test_drafts_that_come_to_nothing_go_before_nobody():
    """Full steps of junk, beside a tenant that decodes and has the larger weight; the drafts of a third are honest."""
    house = House(9)
    for number in range(3):
        house.join(f"d{number}", Tenant("decodes", weight=100.0))
    for number in range(40):
        house.join(f"j{number}", Tenant("junk")).habits.judged(0, 1)
        for _ in range(100):
            house.sessions[f"j{number}"].habits.judged(0, 1)
    for step in range(200):
        if step == 100:
            assert house.settled["decodes"] == 300, "in every step"
            for number in range(4):
                house.join(f"h{number}", Tenant("honest", weight=1000.0))
        for name, session in house.sessions.items():
            if name[0] in "jh" and session.state is State.PARKED and not session.tree.pending:
                house.draft(name, 1 if name[0] == "j" else 8)
        parts = house.plan()
        assert rows(parts) <= 9
        for name, part in parts.items():
            settled = (*part.work.tokens, 7) if name[0] != "j" else (9,)
            outcome = Outcome(name, settled, len(settled) - 1, len(part.work.tokens))
            house.sessions[name].apply(outcome, now=0.0, queue_seconds=0.0, verify_seconds=0.0)
            house.planner.settle(name, len(settled), len(part.work.tokens) + 1, 0.0)
            house.planner.update(name)
            tenant = house.tenants[name].name
            house.settled[tenant] = house.settled.get(tenant, 0) + len(settled)
    assert house.settled["junk"] > 0
    assert house.settled["honest"] > 800, "a full house spends its steps on honest drafts"


@pytest.mark.parametrize("same", [True, False], ids=["one tenant", "two"])
def test_a_session_whose_drafts_come_to_nothing_takes_turns_with_those_that_decode(same):
    house = House(3)
    settled = {"junk": 0, "plain": 0, "other": 0, "third": 0}
    for name in settled:
        house.join(name, ACME if same else Tenant(name))
    for _ in range(100):
        house.sessions["junk"].habits.judged(0, 1)
    for _ in range(400):
        session = house.sessions["junk"]
        if session.state is State.PARKED and not session.tree.pending:
            house.draft("junk", 1)
        for name, part in house.plan().items():
            house.sessions[name].apply(
                Outcome(name, (9,), 0, len(part.work.tokens)), now=0.0, queue_seconds=0.0, verify_seconds=0.0
            )
            house.planner.settle(name, 1, len(part.work.tokens) + 1, 0.0)
            house.planner.update(name)
            settled[name] += 1
    assert settled["junk"] > 100
    assert settled["plain"] > 100


def test_a_prompt_is_charged_for():
    house = House(1)
    for name in ("reads", "waits"):
        house.join(name, Tenant(name))
    house.planner.read("reads", 20 * READ_A_TOKEN)
    turns = []
    for _ in range(30):
        parts = house.plan()
        turns += parts
        house.finish(parts)
    assert turns[:20].count("waits") >= 19
    assert turns[20:].count("reads") >= 4


# ---------------------------------------------------------------- rates


def test_a_tenant_over_its_rate_waits_and_leaves_its_room_to_others():
    slow = Tenant("slow", tokens_per_minute=60, burst=10)
    house = House(10)
    house.join("s", slow)
    house.join("f", ACME)
    house.planner.meter(slow, 15, now=100.0)
    house.draft("s", 8)
    house.draft("f", 4)
    parts = house.plan(100.0)
    assert parts.keys() == {"f"}
    assert house.planner.over_rate(slow, 100.0) == pytest.approx(5.0)
    assert house.planner.next_refill(100.0) == pytest.approx(5.0)
    house.finish(parts, 100.0)
    assert house.plan(104.9).keys() == {"f"}, "it decodes while the other's drafts wait"
    assert "s" in house.plan(105.1)
    assert house.planner.next_refill(105.1) is None


def test_a_tenant_gets_what_its_rate_is_in_the_long_run_and_others_all_the_rest():
    slow = Tenant("slow", tokens_per_minute=600, burst=20)
    house = House(9)
    house.join("s", slow)
    house.join("f", ACME)
    now = 0.0
    for _ in range(2000):
        for name, session in house.sessions.items():
            if session.state is State.PARKED and not session.tree.pending:
                house.draft(name, 8)
        house.finish(house.plan(now), now)
        now += 0.05
    assert house.settled["slow"] == pytest.approx(20 + now * 10, rel=0.02)
    assert house.settled["slow"] + house.settled["acme"] > 0.95 * 9 * 2000


def test_a_tenant_without_a_rate_is_never_over_it():
    house = House(10)
    house.planner.meter(ACME, 10**9, 0.0)
    assert house.planner.over_rate(ACME, 0.0) == 0.0
    assert house.planner.next_refill(0.0) is None


# ---------------------------------------------------------------- windows


@given(
    room=st.integers(2, 500),
    crowds=st.lists(st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_windows_are_what_the_coming_steps_hold_by_weight_and_never_nothing(room, crowds):
    house = House(room)
    tenants = [Tenant(f"t{number}", weight=weight) for number, (weight, _) in enumerate(crowds)]
    for tenant, (_, sessions) in zip(tenants, crowds, strict=True):
        for number in range(sessions):
            house.join(f"{tenant.name}-{number}", tenant)
            house.draft(f"{tenant.name}-{number}", 4)
    house.plan()
    granted = [house.planner.window(tenant, house.sessions[f"{tenant.name}-0"]) for tenant in tenants]
    assert all(1 <= window <= WINDOW for window in granted)
    total = room * (1 + QUEUE_SHARE)
    used = sum(window * sessions for window, (_, sessions) in zip(granted, crowds, strict=True) if window > 1)
    assert used <= total + 1e-6, "no more piles up than the coming steps hold"
    for window, (weight, sessions) in zip(granted, crowds, strict=True):
        least = total * weight / sum(each for each, _ in crowds) / sessions
        assert window >= min(WINDOW, max(1, int(least - 1e-6))), "each has its part at least"


def test_an_empty_house_grants_all():
    house = House(1000)
    house.join("one", ACME)
    assert house.planner.window(ACME, house.sessions["one"]) == WINDOW


def test_a_session_gets_the_rows_that_its_drafts_are_worth():
    times = StepTimes(4096)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        times.observe(rows, 0.030 + 0.001 * rows)
    house = House(4096)
    house.planner = Planner(times, WINDOW)
    tenant = Tenant("t")
    names = ("good", "bad")
    for name in names:
        house.join(name, tenant)
    for _ in range(100):
        house.sessions["good"].habits.judged(8, 8)
        house.sessions["bad"].habits.judged(0, 8)
        times.earned(32, 16, 0.062)
    for name in names:
        house.draft(name, BLOCK)
    parts = house.plan()
    assert len(parts["good"].work.tokens) == BLOCK
    assert len(parts["bad"].work.tokens) == 1
