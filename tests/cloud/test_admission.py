"""From a checked `Open` to a session: what counts, what is left out, and where each limit comes from."""

import pytest
from devices import PROMPT, engine_info, opening, resuming

from edgedraft.errors import InvalidInput
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.admission import check_request, new_session, sampling_of
from edgedraft_cloud.engines.base import Sampling
from edgedraft_cloud.session import Session, State

INFO = engine_info()


def session_of(message: pb.Open, **settings) -> Session:
    check_request(message, INFO, (pb.MODE_OPEN,))
    return new_session(message, INFO, **{"window": 8, "run_ahead": 5, **settings})


def test_a_session_has_the_limits_of_its_open_and_of_the_engine():
    session = session_of(opening(limits=pb.Limits(max_tokens=7)))
    limits = session.limits
    assert (limits.max_tokens, limits.context_room) == (7, INFO.context_length - len(PROMPT))
    assert (limits.window, limits.run_ahead) == (8, 5)
    assert (limits.frames.vocab_size, limits.frames.max_block) == (INFO.vocab_size, INFO.max_block)
    assert session.prompt == tuple(PROMPT)
    assert not limits.may_give
    assert session.state is State.WORKING


def test_sessions_are_named_apart():
    assert len({session_of(opening()).id for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("limits", "stops"),
    [
        ({}, {0, 2}),
        ({"stop_token_ids": [5, 6]}, {0, 2, 5, 6}),
        ({"ignore_eos": True}, set()),
        ({"ignore_eos": True, "stop_token_ids": [5]}, {5}),
    ],
)
def test_stop_tokens_are_the_models_and_the_devices(limits, stops):
    assert session_of(opening(limits=pb.Limits(max_tokens=7, **limits))).limits.stop_tokens == stops


def test_only_one_that_comes_back_brings_tokens():
    assert session_of(opening()).restored is None
    assert session_of(resuming(opening(), b"lost")).restored == ()
    assert session_of(resuming(opening(), b"lost", [5, 6])).text == (*PROMPT, 5, 6)


def test_sampling_has_off_values_where_the_message_has_none():
    assert sampling_of(pb.Sampling()) == Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=None)
    message = pb.Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0)
    assert sampling_of(message) == Sampling(temperature=0.5, top_p=0.25, top_k=3, seed=0)


def test_a_model_may_be_left_out_or_named():
    session_of(opening(model=""))
    session_of(opening(model="toy"))
    with pytest.raises(InvalidInput, match="is 'other', this verifier serves 'toy'"):
        session_of(opening(model="other"))


REFUSED = {
    "open.prompt": {"prompt": [5] * INFO.context_length},
    "open.prompt[1]": {"prompt": [5, INFO.vocab_size]},
    "open.limits.stop_token_ids": {"limits": pb.Limits(max_tokens=1, stop_token_ids=[5] * 65)},
    "open.service_class": {"service_class": 9},
    "open.mode": {"mode": pb.MODE_CLOAKED},
    "open.resume_token": {"resume_token": b"x" * 65},
    "open.resume_tokens": {"resume_token": b"x", "resume_position": 21, "resume_tokens": [5] * 21},
    "open.resume_tokens[1]": {"resume_token": b"x", "resume_position": 2, "resume_tokens": [5, INFO.vocab_size]},
    "open.resume_position": {"resume_token": b"x", "resume_position": 1},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_wrong_is_named(field):
    with pytest.raises(InvalidInput) as caught:
        session_of(opening(**REFUSED[field]))
    assert caught.value.field == field
    assert caught.value.cure
