"""What goes on after a session is over: the rest of its span, within limits that no session counts in."""

import asyncio
from types import SimpleNamespace

import pytest

import edgedraft_cloud.server as server_module
from edgedraft.errors import InvalidInput
from edgedraft.wire import check_shaping
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.metrics import Metrics
from edgedraft_cloud.server import VerifierService
from edgedraft_cloud.tenants import Tenant


class Endless:
    """An outlet whose span does not end by itself."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()

    async def fill(self) -> None:
        self.begun.set()
        await self.over.wait()


def service() -> VerifierService:
    return VerifierService(SimpleNamespace(), Metrics())


async def test_a_tenant_fills_as_many_spans_as_it_may_have_sessions():
    service_, acme = service(), Tenant("acme", max_sessions=2)
    outlets = [Endless() for _ in range(2)]
    filling = [asyncio.create_task(service_._fill(outlet, acme)) for outlet in outlets]
    for outlet in outlets:
        await outlet.begun.wait()
    one_more, of_another = Endless(), Endless()
    await service_._fill(one_more, acme)
    assert not one_more.begun.is_set(), "its stream ends"
    filling.append(asyncio.create_task(service_._fill(of_another, Tenant("other", max_sessions=1))))
    await of_another.begun.wait()
    for outlet in (*outlets, of_another):
        outlet.over.set()
    await asyncio.gather(*filling)
    assert not service_._filling
    again = Endless()
    again.over.set()
    await service_._fill(again, acme)
    assert again.begun.is_set()


async def test_a_span_is_not_filled_for_ever(monkeypatch):
    monkeypatch.setattr(server_module, "FILL_SECONDS", 0.0)
    await service()._fill(Endless(), Tenant("acme"))


async def test_a_device_that_goes_meanwhile_is_not_counted_any_more():
    service_, outlet = service(), Endless()
    filling = asyncio.create_task(service_._fill(outlet, Tenant("acme")))
    await outlet.begun.wait()
    filling.cancel()
    await asyncio.wait([filling])
    assert filling.cancelled()
    assert not service_._filling


@pytest.mark.parametrize(("beat_ms", "span_beats"), [(10, 60_000), (10_000, 60), (50, 12_000), (0, 60_000)])
def test_a_span_may_last_for_ten_minutes(beat_ms, span_beats):
    check_shaping(pb.Shaping(sizes=[16], beat_ms=beat_ms, span_beats=span_beats))


@pytest.mark.parametrize(("beat_ms", "span_beats"), [(11, 60_000), (10_000, 61), (50, 12_001)])
def test_and_no_longer(beat_ms, span_beats):
    with pytest.raises(InvalidInput, match="the limit is 600000; use fewer, or a faster beat") as caught:
        check_shaping(pb.Shaping(sizes=[16], beat_ms=beat_ms, span_beats=span_beats))
    assert caught.value.field == "open.shaping.span_beats"
