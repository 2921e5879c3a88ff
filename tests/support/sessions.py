"""A session's state machine, set going by hand."""

from edgedraft.wire import FrameLimits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_cloud.engines.base import Outcome, Work
from edgedraft_cloud.session import Session, SessionLimits

VOCAB = 50
STOP = 2
PROMPT = (3, 4, 5, 6, 7)
FIRST = 1
"""What the target puts after the prompt."""
ROOM = 1000


def make(restored=None, **changes) -> Session:
    limits = {
        "frames": FrameLimits(vocab_size=VOCAB, context_length=100, max_block=4),
        "max_tokens": 20,
        "context_room": 100,
        "stop_tokens": {STOP},
        "window": 6,
        "run_ahead": 0,
    }
    return Session("s", SessionLimits(**{**limits, **changes}), PROMPT, restored)


def take(session: Session, *tokens: int, accepted: int = 0, judged: int = 0, now: float = 0.0) -> pb.Verdict:
    return session.apply(Outcome("s", tokens, accepted, judged), now=now, queue_seconds=0.0, verify_seconds=0.0)


def begun(**changes) -> Session:
    """One whose prompt was read: position 0 is settled."""
    session = make(**changes)
    take(session, FIRST)
    return session


def draft(*tokens: int, block: int = 1, settled: int = 0, position: int = 1, **fields) -> pb.ClientFrame:
    return pb.ClientFrame(draft=pb.Draft(block=block, tokens=tokens, position=position, **fields), settled=settled)


def work_of(session: Session, rows: int = ROOM) -> Work | None:
    """Its part of a step, if it has one."""
    return session.next_work(rows) if session.has_drafts or session.may_decode else None


def step(session: Session, *tokens: int) -> pb.Verdict:
    """A step in which the target puts these tokens; the beginning that was drafted is accepted."""
    work = work_of(session)
    assert work is not None
    accepted = 0
    while accepted < min(len(work.tokens), len(tokens) - 1) and work.tokens[accepted] == tokens[accepted]:
        accepted += 1
    assert accepted == len(tokens) - 1, "the target goes on only behind accepted drafts"
    return take(session, *tokens, accepted=accepted, judged=len(work.tokens))
