"""A server that sends back every frame and does nothing else: what gRPC and TLS take of a gateway's cost by themselves.

Run as a module it serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from edgedraft.transport.base import Stream
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import SERVICE_NAME
from edgedraft_apps.bench.crowd import CONNECT_SECONDS
from edgedraft_apps.bench.load import wait
from edgedraft_apps.bench.machine import ProcessUse
from edgedraft_apps.bench.suite import Suite
from edgedraft_apps.local_verifier import HOST, stop_process
from edgedraft_cloud.authority import DevelopmentAuthority

FRAME_BYTES = 64
"""What a padded frame has, most of the time."""


async def echo_cost(suite: Suite, streams: int, frames_a_second: float, seconds: float) -> float:
    """CPU seconds of such a server for a frame, read and sent back.

    Args:
        suite: The surroundings.
        streams: How many, each of a device of its own.
        frames_a_second: All together.
        seconds: How long to measure.
    """
    tls = DevelopmentAuthority(suite.folder / "ca").server()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(tls)), stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    pause, counts = streams / frames_a_second, [0] * streams
    try:
        address = f"{HOST}:{int(await process.stdout.readline())}"
        async with AsyncExitStack() as stack:

            async def keep_on(number: int, stream: Stream) -> None:
                await asyncio.sleep(number / frames_a_second)  # not all at once
                while True:
                    await stream.send(bytes(FRAME_BYTES))
                    await stream.receive()
                    counts[number] += 1
                    await asyncio.sleep(pause)

            tasks = []
            for number, identity in enumerate(suite.devices("a", streams)):
                suite.progress("connect to gRPC alone", number, streams, "devices")
                link = GrpcTransport(address, identity, timeout=CONNECT_SECONDS)
                stack.push_async_callback(link.close)
                tasks.append(asyncio.create_task(keep_on(number, await link.open_stream())))
            await wait("warm up gRPC alone", 2 * pause, suite.progress)
            begun, before = sum(counts), ProcessUse.of(process.pid)
            await wait("gRPC alone", seconds, suite.progress)
            used, done = ProcessUse.of(process.pid).cpu_seconds - before.cpu_seconds, sum(counts) - begun
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    finally:
        await stop_process(process)
    return used / max(1, done)


async def _serve(tls: Path) -> None:
    # Only here: it needs the verifier's packages.
    from edgedraft_cloud.server import load_credentials

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        async for frame in requests:
            await context.write(frame)

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, {"Verify": handler}),))
    port = server.add_secure_port(f"{HOST}:0", load_credentials(tls))
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
