"""Windows: tenants share what the coming steps hold by weight, however many sessions each has."""

from types import SimpleNamespace

import pytest

from edgedraft_cloud.engines.base import Work
from edgedraft_cloud.planner import Planner
from edgedraft_cloud.step_times import StepTimes
from edgedraft_cloud.tenants import Tenant


class Drafting:
    """A session that always has drafts."""

    has_drafts = True
    may_decode = False

    def __init__(self, name: str, chain: int = 3) -> None:
        self.id = name
        self.chain = chain
        self.limits = SimpleNamespace(may_give=False)
        self.habits = SimpleNamespace(acceptance=0.75, back=0.0)

    def next_work(self, rows: int, drafts: int) -> Work:
        return Work(self.id, (1,) * min(self.chain, rows - 1))

    def waited(self, now: float) -> float:
        return 0.0


def windows(room: int, *crowds: tuple[Tenant, int]) -> list[int]:
    planner = Planner(StepTimes(4096, room), 32)
    for tenant, sessions in crowds:
        for number in range(sessions):
            session = Drafting(f"{tenant.name}-{number}")
            planner.join(session, tenant, background=False)
            planner.update(session.id)
    planner.plan(0.0)
    return [planner.window(tenant, Drafting("any")) for tenant, _ in crowds]


def test_sessions_of_one_tenant_share_two_steps():
    assert windows(64, (Tenant("a"), 16)) == [8]


def test_a_crowd_does_not_shrink_the_windows_of_another_tenant():
    assert windows(64, (Tenant("few"), 4), (Tenant("many"), 80)) == [16, 1]


def test_the_weight_counts():
    assert windows(64, (Tenant("a", weight=3.0), 8), (Tenant("b"), 8)) == [12, 4]


def test_what_a_tenant_cannot_use_is_the_others():
    assert windows(64, (Tenant("one"), 1), (Tenant("others"), 8)) == [32, 12]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_tenant_that_has_not_drafted_yet_gets_what_it_would(weight):
    planner = Planner(StepTimes(4096, 8), 32)
    assert planner.window(Tenant("new", weight=weight), Drafting("any")) == 16


@pytest.mark.parametrize(("alpha", "back", "window"), [(0.5, 0.0, 4), (0.5, 0.1, 6), (0.9, 0.0, 16), (0.5, 9.0, 32)])
def test_a_window_holds_what_steps_will_take_until_a_verdict_is_answered(alpha, back, window):
    times = StepTimes(4096, 4096)
    for rows in (1, 2, 4, 8, 16, 32):
        times.observe(rows, 0.1 + 0.01 * rows)
    times.earned(32, 20, 0.42)  # a row takes the time for 0.476 tokens
    session = Drafting("any")
    session.habits = SimpleNamespace(acceptance=alpha, back=back)
    planner = Planner(times, 32)
    assert planner.window(Tenant("a"), session) == window
    session.limits.may_give = True
    assert planner.window(Tenant("a"), session) == 32


def test_who_drafts_nothing_right_does_not_get_the_house_for_it():
    """Equal weights, and one of the two settles a token where the other settles all it drafts."""
    planner = Planner(StepTimes(4096, 16), 32)
    sessions = {name: Drafting(name, 15) for name in ("right", "wrong")}
    for name, session in sessions.items():
        planner.join(session, Tenant(name), background=False)
    rows = dict.fromkeys(sessions, 0)
    for _ in range(1000):
        for name in sessions:
            planner.update(name)
        for part in planner.plan(0.0):
            name = part.work.session
            mine = len(part.work.tokens) + 1
            rows[name] += mine
            planner.settle(name, mine if name == "right" else 1, mine, 0.0)
    assert rows["wrong"] <= 4.1 * rows["right"], "by tokens alone it would be 16 to 1"
