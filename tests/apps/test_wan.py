"""The WAN proxy: bytes arrive whole and in order, late by at least what was asked, and a cut or stall is one."""

import asyncio
import contextlib
import random
from contextlib import asynccontextmanager

import pytest

from edgedraft.errors import InvalidInput
from edgedraft_apps.wan import WanProxy


class Echo:
    """A server that sends back what it gets, and says goodbye when the other side has."""

    def __init__(self):
        self.port = 0
        self.live = 0
        self.left = asyncio.Condition()

    async def serve(self, reader, writer):
        self.live += 1
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
            await writer.drain()
        except OSError:
            pass  # the connection was cut
        finally:
            writer.transport.abort()
            async with self.left:
                self.live -= 1
                self.left.notify_all()

    async def all_left(self):
        async with self.left:
            await self.left.wait_for(lambda: self.live == 0)


@pytest.fixture
async def echo():
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()
    await echo.all_left()


@asynccontextmanager
async def connected(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("settings", [{}, {"rtt": 0.02, "jitter": 0.01}, {"bytes_per_second": 20e6}])
async def test_bytes_arrive_whole_and_in_order_and_half_close_passes(echo, settings):
    sent = random.Random(1).randbytes(9_000_000)  # more than the proxy holds

    async def send(writer):
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    async with WanProxy("127.0.0.1", echo.port, **settings) as proxy, connected(proxy) as (reader, writer):
        sending = asyncio.create_task(send(writer))
        assert await reader.read(-1) == sent + b"bye"
        await sending


async def test_an_answer_takes_at_least_the_round_trip(echo):
    loop = asyncio.get_running_loop()
    async with WanProxy("127.0.0.1", echo.port, rtt=0.2) as proxy, connected(proxy) as (reader, writer):
        started = loop.time()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert loop.time() - started >= 0.2


async def test_the_rate_holds_bytes_back(echo):
    loop = asyncio.get_running_loop()
    async with WanProxy("127.0.0.1", echo.port, bytes_per_second=1e6) as proxy, connected(proxy) as (reader, writer):
        started = loop.time()
        writer.write(bytes(200_000))
        await reader.readexactly(200_000)
        assert loop.time() - started >= 0.2


async def test_many_messages_are_under_way_at_once(echo):
    """One after the other, they would take a round trip each; the clock that is compared with is far from both."""
    loop = asyncio.get_running_loop()
    rtt, count = 0.3, 100
    async with WanProxy("127.0.0.1", echo.port, rtt=rtt) as proxy, connected(proxy) as (reader, writer):
        started = loop.time()
        for number in range(count):
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(count) == bytes(range(count))
        assert rtt <= loop.time() - started < rtt * count


async def test_a_stall_keeps_everything_and_a_resume_lets_it_through(echo):
    async with WanProxy("127.0.0.1", echo.port) as proxy, connected(proxy) as (reader, writer):
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.stall()
        writer.write(b"bcd")
        waiting = asyncio.create_task(reader.readexactly(3))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        proxy.resume()
        assert await waiting == b"bcd"


async def test_a_cut_ends_both_sides_and_new_connections_are_taken(echo):
    async with WanProxy("127.0.0.1", echo.port) as proxy:
        async with connected(proxy) as (reader, writer):
            writer.write(b"a")
            await reader.readexactly(1)
            await proxy.cut()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(1)
            await echo.all_left()
        async with connected(proxy) as (reader, writer):
            writer.write(b"z")
            assert await reader.readexactly(1) == b"z"


async def test_a_target_that_is_not_there_closes_the_connection():
    async with WanProxy("127.0.0.1", 1) as proxy, connected(proxy) as (reader, _):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"rtt": -0.1}, "rtt"),
        ({"rtt": float("nan")}, "rtt"),
        ({"jitter": 4000}, "jitter"),
        ({"bytes_per_second": 0}, "bytes_per_second"),
        ({"bytes_per_second": float("nan")}, "bytes_per_second"),
    ],
)
def test_wrong_settings_are_named(settings, field):
    with pytest.raises(InvalidInput) as caught:
        WanProxy("127.0.0.1", 1, **settings)
    assert caught.value.field == field
