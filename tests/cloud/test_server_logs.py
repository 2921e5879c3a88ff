"""The verifier's log: JSON lines with ids, counts and times, and never what a device has sent."""

import asyncio
import gc
import io
import json
import logging

import pytest
from toy import scripted_info

from edgedraft.errors import RequestRejected, VerifierUnavailable
from edgedraft.identity import Identity
from edgedraft.transport.grpcio import GrpcTransport
from edgedraft.wire import PROTOCOL_VERSION, decode_server_frame
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud import logs
from edgedraft_cloud.engines.scripted import ScriptedEngine
from edgedraft_cloud.orchestrator import Orchestrator
from edgedraft_cloud.server import start_server

MARK = "71717"
PROMPT, DRAFT, ANSWER, TOO_LARGE = 717171, 717172, 717173, 4_000_717_174


@pytest.fixture
def log():
    """All that this process logs, formatted as the verifier does."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def lines(log):
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.fixture
async def server(certificates, codec):
    info = scripted_info(codec, vocab_size=4_000_000_000)
    engine = ScriptedEngine(lambda tokens: ANSWER, info)
    server = await start_server(Orchestrator(engine, window=8), certificates.server(), "localhost", 0)
    yield server, engine, Identity.load(certificates.device("acme", "phone-1"))
    await server.stop(0)


async def session(server, *drafts, max_tokens=20):
    running, engine, identity = server
    transport = GrpcTransport(f"localhost:{running.port}", identity)
    opening = pb.Open(
        protocol=PROTOCOL_VERSION,
        tokenizer_fingerprint=engine.info.tokenizer_fingerprint,
        mode=pb.MODE_OPEN,
        prompt=[PROMPT] * 3,
        limits=pb.Limits(max_tokens=max_tokens, ignore_eos=True),
    )
    try:
        stream = await transport.open_stream()
        await stream.send(pb.ClientFrame(open=opening).SerializeToString())
        for draft in drafts:
            await stream.send(pb.ClientFrame(draft=draft).SerializeToString())
        return [decode_server_frame(frame) async for frame in _frames(stream)]
    finally:
        await transport.close()


async def _frames(stream):
    while (frame := await stream.receive()) is not None:
        yield frame


async def test_a_session_is_logged_with_its_names_and_counts_and_without_content(server, log):
    frames = await session(server, pb.Draft(block=1, tokens=[ANSWER, DRAFT]))
    assert [token for frame in frames for token in frame.verdict.tokens] == [ANSWER] * 20
    opened = next(line for line in lines(log) if line["event"] == "session opened")
    closed = next(line for line in lines(log) if line["event"] == "session closed")
    assert (opened["tenant"], opened["device"], opened["prompt_tokens"]) == ("acme", "phone-1", 3)
    assert closed["session"] == opened["session"]
    assert closed["settled"] == 20
    assert MARK not in log.getvalue()


async def test_a_rejected_frame_is_logged_by_its_field_alone(server, log):
    # More tokens than the verifier decodes ahead: the session cannot end before the frame arrives.
    with pytest.raises(RequestRejected, match=str(TOO_LARGE)):
        await session(server, pb.Draft(block=1, tokens=[TOO_LARGE]), max_tokens=150)
    rejected = next(line for line in lines(log) if line["event"] == "request rejected")
    assert (rejected["field"], rejected["tenant"]) == ("draft.tokens[0]", "acme")
    assert MARK not in log.getvalue()


async def test_a_fault_of_ours_has_a_number_that_both_sides_know_and_no_content(server, log, monkeypatch):
    async def fail(session, prompt, sampling, salt):
        raise RuntimeError(f"cannot take {list(prompt)}")

    monkeypatch.setattr(server[1], "open", fail)
    with pytest.raises(VerifierUnavailable, match="internal error") as caught:
        await session(server)
    line = next(line for line in lines(log) if line["event"] == "internal error")
    assert line["incident"] in str(caught.value)
    assert line["exception"] == "RuntimeError"
    assert line["raised_at"][-1].startswith("test_server_logs.py:")
    assert MARK not in log.getvalue()
    assert MARK not in str(caught.value)


async def test_what_asyncio_says_of_a_forgotten_task_is_cut_before_its_values(log):
    async def forgotten():
        raise ValueError(f"token {PROMPT}")

    task = asyncio.ensure_future(forgotten())
    await asyncio.wait([task])
    del task
    gc.collect()
    line = next(line for line in lines(log) if line["logger"] == "asyncio" and line["level"] == "error")
    assert line["event"] == "Task exception was never retrieved"
    assert line["exception"] == "ValueError"
    assert MARK not in log.getvalue()


def test_configure_sends_json_lines_to_standard_error(capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        logs.configure("warning")
        logging.getLogger("edgedraft_cloud.x").warning("full", extra={"sessions": 3})
        logging.getLogger("edgedraft_cloud.x").info("quiet")
    finally:
        root.handlers[:], root.level = before
    out, err = capsys.readouterr()
    line = json.loads(err)
    assert out == ""
    assert (line["level"], line["logger"], line["event"], line["sessions"]) == (
        "warning",
        "edgedraft_cloud.x",
        "full",
        3,
    )
