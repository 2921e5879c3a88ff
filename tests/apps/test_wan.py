"""The WAN proxy: bytes arrive whole and in order, late by at least what was asked, and a cut or stall is one."""

import asyncio
import random

import pytest

from edgedraft.errors import InvalidInput
from edgedraft_apps.wan import WanProxy


@pytest.fixture
async def echo():
    """The port of a server that sends back what it gets, and closes when the other side has."""
    gone = asyncio.Queue()

    async def serve(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
            await writer.drain()
        except OSError as error:
            gone.put_nowait(error)
        finally:
            writer.close()
            gone.put_nowait(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], gone
    server.close()


async def connect(proxy):
    return await asyncio.open_connection("127.0.0.1", proxy.port)


@pytest.mark.parametrize("settings", [{}, {"rtt": 0.02, "jitter": 0.01}, {"bytes_per_second": 20e6}])
async def test_bytes_arrive_whole_and_in_order_and_half_close_passes(echo, settings):
    sent = random.Random(1).randbytes(9_000_000)  # more than the proxy holds
    async with WanProxy("127.0.0.1", echo[0], **settings) as proxy:
        reader, writer = await connect(proxy)

        async def send():
            writer.write(sent)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        received = await reader.read(-1)
        await sending
        assert received == sent + b"bye"
        writer.close()
        await writer.wait_closed()


async def test_an_answer_takes_at_least_the_round_trip(echo):
    loop = asyncio.get_running_loop()
    async with WanProxy("127.0.0.1", echo[0], rtt=0.2) as proxy:
        reader, writer = await connect(proxy)
        started = loop.time()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert loop.time() - started >= 0.2
        writer.close()


async def test_the_rate_holds_bytes_back(echo):
    loop = asyncio.get_running_loop()
    async with WanProxy("127.0.0.1", echo[0], bytes_per_second=1e6) as proxy:
        reader, writer = await connect(proxy)
        started = loop.time()
        writer.write(bytes(200_000))
        await reader.readexactly(200_000)
        assert loop.time() - started >= 0.2
        writer.close()


async def test_many_messages_are_under_way_at_once(echo):
    """One after the other, 100 of them would take 100 round trips."""
    loop = asyncio.get_running_loop()
    rtt, count = 0.3, 100
    async with WanProxy("127.0.0.1", echo[0], rtt=rtt) as proxy:
        reader, writer = await connect(proxy)
        started = loop.time()
        for number in range(count):
            writer.write(bytes([number]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(count) == bytes(range(count))
        assert rtt <= loop.time() - started < rtt * count
        writer.close()


async def test_a_stall_keeps_everything_and_a_resume_lets_it_through(echo):
    async with WanProxy("127.0.0.1", echo[0]) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        proxy.stall()
        for byte in (b"b", b"c", b"d"):
            writer.write(byte)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(reader.read(1))), 0.1)
        proxy.resume()
        # The read that was left waiting has taken the first byte of what follows, or all of it.
        writer.write_eof()
        rest = await reader.read(-1)
        assert b"bcdbye".endswith(rest)
        writer.close()


async def test_a_cut_ends_both_sides_and_new_connections_are_taken(echo):
    port, gone = echo
    async with WanProxy("127.0.0.1", port) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"a")
        await reader.readexactly(1)
        await proxy.cut()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        await gone.get()
        writer.close()
        reader, writer = await connect(proxy)
        writer.write(b"z")
        assert await reader.readexactly(1) == b"z"
        writer.close()


async def test_a_target_that_is_not_there_closes_the_connection():
    async with WanProxy("127.0.0.1", 1) as proxy:
        reader, writer = await connect(proxy)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)
        writer.close()


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
