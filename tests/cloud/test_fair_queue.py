"""The fair queue: shares by weight whatever comes when, no saving up, and order among a tenant's own sessions."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedraft_cloud.fair_queue import FairQueue

LARGEST = 32
blocks = st.integers(1, LARGEST)
weights = st.sampled_from([0.25, 1.0, 1.5, 3.0])


class Shop:
    """A queue whose sessions always want more, unless they are told to pause."""

    def __init__(self, lanes: int = 1) -> None:
        self.queue = FairQueue(lanes)
        self.weights: dict[str, float] = {}
        self.of: dict[str, str] = {}
        self.served: dict[str, float] = {}

    def open(self, tenant: str, session: str, weight: float = 1.0, rank: int = 0) -> None:
        self.weights[tenant] = weight
        self.of[session] = tenant
        self.queue.join(session, tenant, weight, rank)
        self.queue.put(session)

    def close(self, session: str) -> None:
        self.queue.leave(session)
        del self.of[session]

    def serve(self, size: float, may=lambda _: True) -> str | None:
        """Serve whose turn it is, who then waits again."""
        session = self.queue.take(0, may)
        if session is not None:
            for name in (session, self.of[session]):
                self.served[name] = self.served.get(name, 0) + size
            self.queue.charge(session, size)
            self.queue.put(session)
        return session

    def share(self, tenant: str) -> float:
        return self.served.get(tenant, 0) / self.weights[tenant]


# ---------------------------------------------------------------- among tenants


@settings(max_examples=300)
@given(
    pair=st.tuples(weights, weights),
    sessions=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    before=st.lists(blocks, max_size=20),
    history=st.lists(st.tuples(blocks, st.sampled_from(["", "", "come", "go", "poke"])), max_size=120),
)
def test_while_two_tenants_wait_their_shares_differ_by_one_block_each(pair, sessions, before, history):
    """The bound of start-time fair queueing, whatever a third one does and however long one was there alone before."""
    shop = Shop()
    for number in range(sessions[0]):
        shop.open("a", f"a{number}", pair[0])
    for size in before:
        shop.serve(size)
    for number in range(sessions[1]):
        shop.open("b", f"b{number}", pair[1])
    shop.served.clear()
    bound = LARGEST / pair[0] + LARGEST / pair[1]
    for size, event in history:
        match event:
            case "come" if "c" not in shop.of:
                shop.open("c", "c", 2.0)
            case "go" if "c" in shop.of:
                shop.close("c")
            case "poke":
                shop.queue.put("b0")  # a frame came; that must not cost or gain a turn
        shop.serve(size)
        assert abs(shop.share("a") - shop.share("b")) <= bound + 1e-6


@given(history=st.lists(blocks, max_size=150), weight=weights)
def test_one_that_leaves_and_comes_back_for_every_block_gains_nothing(history, weight):
    shop = Shop()
    shop.open("steady", "s", 1.0)
    names = (f"fresh-{number}" for number in itertools.count())
    current = next(names)
    shop.open("restless", current, weight)
    for size in history:
        if shop.serve(size) == current:
            shop.close(current)
            current = next(names)
            shop.open("restless", current, weight)
        assert shop.share("restless") - shop.share("steady") <= LARGEST + LARGEST / weight + 1e-6


@given(alone=st.lists(blocks, min_size=1, max_size=50), after=st.lists(blocks, max_size=50))
def test_one_that_was_away_has_saved_nothing_up(alone, after):
    shop = Shop()
    shop.open("away", "a")
    shop.open("there", "t")
    shop.serve(1)
    shop.serve(1)
    shop.queue.discard("a")
    for size in alone:
        assert shop.serve(size) == "t"
    shop.queue.put("a")
    shop.served.clear()
    for size in after:
        shop.serve(size)
        assert shop.share("away") - shop.share("there") <= 2 * LARGEST


@given(held=st.lists(blocks, min_size=1, max_size=50), after=st.lists(blocks, max_size=50))
def test_one_that_might_not_go_keeps_its_place_in_line_and_has_saved_nothing_up(held, after):
    shop = Shop()
    shop.open("held", "h")
    shop.open("free", "f")
    for size in held:
        assert shop.serve(size, lambda tenant: tenant != "held") == "f"
    assert shop.queue.waiting() == 2
    shop.served.clear()
    for size in after:
        shop.serve(size)
        assert shop.share("held") - shop.share("free") <= 2 * LARGEST
    if len(after) > 2 * LARGEST:
        assert shop.served["held"] > 0


def test_where_nobody_may_nobody_goes_and_nobody_loses_its_turn():
    shop = Shop()
    shop.open("a", "a")
    shop.open("b", "b")
    assert shop.queue.take(0, lambda _: False) is None
    assert {shop.queue.take(), shop.queue.take()} == {"a", "b"}
    assert shop.queue.take() is None


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_the_number_of_sessions_buys_nothing(ratio):
    shop = Shop()
    shop.open("few", "f", ratio)
    for number in range(20):
        shop.open("many", f"m{number}", 1.0)
    for _ in range(2000):
        shop.serve(5)
    assert shop.served["few"] / shop.served["many"] == pytest.approx(ratio, rel=0.01)


# ---------------------------------------------------------------- charges


@given(estimate=st.integers(1, 40), actual=st.integers(1, 40), history=st.lists(blocks, max_size=60))
def test_a_charge_that_is_set_right_is_as_good_as_the_right_one(estimate, actual, history):
    order = []
    for charges in ([estimate, actual - estimate], [actual]):
        shop = Shop()
        for tenant in "ab":
            for number in range(3):
                shop.open(tenant, f"{tenant}{number}")
        first = shop.queue.take()
        for charge in charges:
            shop.queue.charge(first, charge)
        shop.queue.put(first)
        order.append([shop.serve(size) for size in history])
    assert order[0] == order[1]


def test_lanes_share_what_a_tenant_was_served():
    shop = Shop(lanes=2)
    for tenant in "ab":
        for number in range(2):
            shop.open(tenant, f"{tenant}{number}")
    shop.queue.put("a0", 1)
    shop.queue.put("b0", 1)
    shop.queue.charge("a1", 10)
    assert (shop.queue.waiting(0), shop.queue.waiting(1)) == (2, 2)
    assert shop.queue.take(1) == "b0"
    assert shop.queue.take(0) == "b1"
    assert (shop.queue.take(1), shop.queue.take(0)) == ("a0", "a1")


def test_a_session_waits_in_one_lane_and_once():
    shop = Shop(lanes=2)
    shop.open("a", "s")
    shop.queue.put("s")
    shop.queue.put("s", 1)
    assert (shop.queue.waiting(0), shop.queue.waiting(1)) == (0, 1)
    assert shop.queue.take(0) is None
    assert shop.queue.take(1) == "s"
    assert shop.queue.take(1) is None


def test_what_is_unknown_does_no_harm():
    queue = FairQueue()
    queue.leave("nobody")
    queue.discard("nobody")
    queue.charge("nobody", 5)
    assert queue.take() is None


# ---------------------------------------------------------------- among a tenant's own


@given(count=st.integers(2, 5), history=st.lists(blocks, max_size=120))
def test_sessions_of_a_tenant_share_its_part_evenly(count, history):
    shop = Shop()
    for number in range(count):
        shop.open("a", f"s{number}")
    shop.open("b", "other")
    for size in history:
        shop.serve(size)
        served = [shop.served.get(f"s{number}", 0) for number in range(count)]
        assert max(served) - min(served) <= 2 * LARGEST


@given(
    history=st.lists(
        st.tuples(st.sampled_from(["take", "put"]), st.sampled_from(["i0", "i1", "b0", "b1"]), blocks), max_size=80
    )
)
def test_a_background_session_goes_only_where_no_interactive_one_of_its_tenant_waits(history):
    queue = FairQueue()
    for name in ("i0", "i1", "b0", "b1"):
        queue.join(name, "a", 1.0, rank=int(name[0] == "b"))
    queue.join("other", "b", 1.0)
    queue.put("other")
    waiting = set()
    for event, name, size in history:
        if event == "put":
            queue.put(name)
            waiting.add(name)
            continue
        taken = queue.take()
        queue.charge(taken, size) if taken else None
        if taken == "other":
            queue.put("other")
            continue
        if taken.startswith("b"):
            assert not any(name.startswith("i") for name in waiting)
        waiting.remove(taken)


def test_background_of_one_tenant_does_not_wait_for_the_interactive_of_another():
    shop = Shop()
    shop.open("a", "interactive")
    shop.open("b", "background", rank=1)
    served = [shop.serve(1) for _ in range(10)]
    assert served.count("background") == 5


# ---------------------------------------------------------------- memory


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "charge"]), st.integers(0, 3)), max_size=300))
def test_the_count_of_those_that_wait_is_right(history):
    queue = FairQueue()
    waiting = set()
    for number in range(4):
        queue.join(f"s{number}", f"t{number % 2}", 1.0)
    for event, number in history:
        match event:
            case "put":
                queue.put(f"s{number}")
                waiting.add(f"s{number}")
            case "charge":
                queue.charge(f"s{number}", number)
            case "take":
                taken = queue.take()
                assert (taken is None) == (not waiting)
                waiting.discard(taken)
        assert queue.waiting() == len(waiting)


def test_a_lane_that_is_never_served_holds_no_more_than_waits_there():
    """Each frame of a device lets its session wait anew, also in a house so full that nobody of its lane goes."""
    shop = Shop(lanes=2)
    for tenant in "ab":
        shop.open(tenant, tenant)
    for _ in range(5000):
        for tenant in "ab":
            shop.queue.put(tenant, 1)
            shop.queue.charge(tenant, 1)
    rooms = [lane for room in shop.queue._rooms.values() for lane in room.lanes]
    assert max(len(ready._heap) for ready in (*shop.queue._tenants, *rooms)) < 100


def test_to_look_who_is_next_moves_nobody_on():
    queue = FairQueue(lanes=2)
    for tenant, lane in (("ahead", 0), ("behind", 1)):
        queue.join(tenant, tenant, 1.0)
        queue.put(tenant, lane)
    queue.charge("ahead", 5.0)
    assert [queue.peek(lane) for lane in (0, 1)] == ["ahead", "behind"]
    assert queue.clocks("behind") < queue.clocks("ahead")
    assert queue.take(1) == "behind"
    queue.put("behind", 1)
    assert queue.clocks("behind") == (0.0, 0.0), "nobody was served before it"
    assert queue.peek(0, lambda tenant: False) is None
