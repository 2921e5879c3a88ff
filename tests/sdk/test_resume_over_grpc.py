"""Resuming against the real server over real TLS: links that are cut, and a verifier that is restarted."""

import pytest
from toy import scripted_info, toy_target

from edgedraft.errors import VerifierUnavailable
from edgedraft.events import Finished, Interrupted, Resumed, Verified
from edgedraft.sampling import SamplingParams
from edgedraft_apps.wan import WanProxy
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server

LONG = SamplingParams(max_tokens=60, ignore_eos=True)


def expected(codec) -> list[int]:
    prompt = codec.encode_chat([{"role": "user", "content": "sky"}])
    out: list[int] = []
    while len(out) < LONG.max_tokens:
        out.append(toy_target((*prompt, *out)))
    return out


@pytest.mark.parametrize("cuts", [1, 5])
async def test_a_link_that_is_cut_in_mid_answer_costs_no_token(bench, codec, cuts):
    settled: list[int] = []
    left = cuts
    async with (
        WanProxy("127.0.0.1", bench.server.port, rtt=0.01) as proxy,
        bench.client(transport=bench.transport(port=proxy.port)) as client,
    ):
        async for event in client.generate("sky", LONG):
            match event:
                case Verified(position=position, tokens=tokens):
                    assert position == len(settled)
                    settled += tokens
                    if left and len(settled) < LONG.max_tokens:
                        left -= 1
                        await proxy.cut()
                case Finished(report=report):
                    assert report.resumes >= 1
    assert settled == expected(codec)
    assert not left


async def test_a_verifier_that_is_restarted_goes_on_from_the_devices_tokens(bench, codec, certificates):
    settled: list[int] = []
    kinds = []
    async with bench.client() as client:
        async for event in client.generate("sky", LONG):
            if isinstance(event, Verified):
                settled += event.tokens
                if not kinds:
                    await bench.server.stop(0)
                    orchestrator = Orchestrator(ScriptedEngine(toy_target, scripted_info(codec)), window=8, run_ahead=8)
                    again = await start_server(orchestrator, certificates.server(), "localhost", bench.server.port)
            if not isinstance(event, Verified | Interrupted | Resumed | Finished):
                continue
            kinds.append(type(event))
    try:
        assert settled == expected(codec)
        assert Interrupted in kinds
        assert Resumed in kinds
    finally:
        await again.stop(0)


async def test_a_verifier_that_is_gone_for_good_is_told(bench):
    async def consume(client) -> None:
        stopped = False
        async for event in client.generate("sky", LONG):
            if isinstance(event, Verified) and not stopped:
                stopped = True
                await bench.server.stop(0)

    async with bench.client(resume_seconds=3.0) as client:
        with pytest.raises(VerifierUnavailable, match="nothing listens"):
            await consume(client)
