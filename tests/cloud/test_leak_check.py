"""The check for leaks finds a marker in every form in which a careless line could show it, and nothing else."""

import json
import logging

import pytest
from leaks import Marker, Watch

from edgedraft.wire import verify_pb2 as pb

MARKER = Marker("Zażółć the heron's 7 eggs", (812, 5, 30_517, 129, 3000, 777))
RARE = Marker("one token", (717_171,))
FRAME = pb.ClientFrame(draft=pb.Draft(block=1, tokens=MARKER.tokens))


def session(watch, **extra):
    """What a verifier says of a session, with `extra` on top of one log line."""
    logging.getLogger("edgedraft_cloud").info("session opened", extra={"session": "s-1", **extra})
    watch.metrics.opened("acme", 6)
    trace = watch.tracer.session("s-1", "acme", "phone-1")
    trace.step(queue_seconds=0.1, verify_seconds=0.2, judged=3, accepted=2, settled=3)
    trace.end("stop")


def test_a_decent_verifier_passes():
    with Watch() as watch:
        session(watch, prompt_tokens=6, port=30_517, ids=[812, 5, 30_518])
    watch.assert_nothing_of(MARKER, RARE)


@pytest.mark.parametrize(
    "value",
    [
        MARKER.text,
        MARKER.text.upper(),
        [MARKER.text],
        repr(MARKER.text),
        ascii(MARKER.text),
        json.dumps(MARKER.text),
        MARKER.text.encode().hex(),
        list(MARKER.tokens),
        MARKER.tokens[2:5],
        "5 30517 129",
        str(FRAME),
        FRAME.SerializeToString(),
        FRAME.SerializeToString().hex(),
        717_171,
        "token=717171",
    ],
    ids=str,
)
def test_a_careless_log_line_is_found(value):
    with Watch() as watch:
        session(watch, value=value)
    with pytest.raises(AssertionError, match="is in the log"):
        watch.assert_nothing_of(MARKER, RARE)


def test_a_careless_label_and_a_careless_span_are_found():
    with Watch() as watch:
        session(watch)
        watch.metrics.closed("acme", reason=MARKER.text)
    with pytest.raises(AssertionError, match="is in the metrics"):
        watch.assert_nothing_of(MARKER)
    with Watch() as watch:
        session(watch)
        watch.tracer.session("s-2", "acme", MARKER.text).end("stop")
    with pytest.raises(AssertionError, match="is in the traces"):
        watch.assert_nothing_of(MARKER)


def test_where_there_is_nothing_to_see_nothing_is_proved():
    with Watch() as watch:
        pass
    with pytest.raises(AssertionError, match="the log: empty"):
        watch.assert_nothing_of(MARKER)
