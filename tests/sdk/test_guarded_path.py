"""What the guard makes of a generation's path: tokens held back, guessed by the verifier, or settled meanwhile."""

import pytest

from edgedraft.core.log import DraftLog
from edgedraft.deciders import GuardedPath
from edgedraft.errors import ProtocolError
from edgedraft.privacy.guard import Guard

SECRET = "4929123477"
WORDS = (" 4929", " and", " 3477", " so", " 9123", "___", " the", " quick", " brown", " fox", " jumps", " over")
PLACEHOLDER = 5


def make(private: str = "", window: int = 16) -> tuple[Guard, DraftLog]:
    guard = Guard([SECRET], [private], "", lambda token: WORDS[token].encode())
    return guard, DraftLog(max_tokens=100, window=window, max_block=1, placeholder=PLACEHOLDER, last_word=True)


def draft(path: GuardedPath, log: DraftLog, token: int) -> None:
    """Put a token behind the path, as a decider does; it would take any other too."""
    trail, position = path.trail(log), len(log.settled) + len(log.path)
    log.add(token, 0.9, held=path.holds(trail, token), takes=lambda each: path.agrees(trail, position, each))
    log.resolve()


def send(path: GuardedPath, log: DraftLog) -> list[int]:
    sent: list[int] = []
    while (block := log.take_block(lambda node: path.leaves(node, log))) is not None:
        sent += block.tokens
    return sent


def test_a_piece_that_was_held_back_is_held_back_again():
    guard, log = make()
    path, sent = GuardedPath(guard), []
    for token in (0, 1, 2, 3, 2, 3, 4, 3, 4):
        draft(path, log, token)
        (block,) = [log.take_block(lambda node: path.leaves(node, log))]
        sent += block.tokens
        log.settle(block.position, list(block.tokens), block.number)
    assert sent == [0, 1, PLACEHOLDER, 3, PLACEHOLDER, 3, PLACEHOLDER, 3, PLACEHOLDER]


@pytest.mark.parametrize("ahead", [1, 4, 9])
def test_to_agree_to_what_the_verifier_says_first_counts_as_if_it_was_sent(ahead):
    """However many tokens it says at once: of the secret no more is confirmed than would have left."""
    guard, log = make()
    path, said = GuardedPath(guard), [0, 3, 2, 3, 4, 3, 1, 3, 1]
    while len(log.settled) < len(said):
        for token in said[len(log.settled) : len(log.settled) + ahead]:
            draft(path, log, token)
        if log.settle(len(log.settled), said[len(log.settled) : len(log.settled) + ahead]).vetoed:
            break
    assert log.settled == [0, 3]
    assert [(node.token, node.wire) for node in log.path[:1]] == [(2, PLACEHOLDER)]


def test_what_was_agreed_to_at_the_end_counts_in_the_next_generation():
    guard, log = make()
    draft(GuardedPath(guard), log, 0)
    assert log.settle(0, [0]).tokens == (0,)
    _, log = make()
    path = GuardedPath(guard)
    draft(path, log, 2)
    assert send(path, log) == [PLACEHOLDER]


def test_what_was_agreed_to_is_in_the_order_of_what_left():
    guard, log = make("the quick brown fox jumps over")
    path = GuardedPath(guard)
    for token in (6, 7, 8, 9):
        draft(path, log, token)
    assert log.settle(0, [6, 7, 8, 9]).tokens == (6, 7, 8, 9)
    _, log = make()
    path = GuardedPath(guard)
    draft(path, log, 10)
    assert send(path, log) == [PLACEHOLDER]


def test_a_guess_in_place_of_the_devices_own_token_counts_too():
    guard, log = make()
    path = GuardedPath(guard)
    for own, guessed in ((1, 0), (1, 2)):
        draft(path, log, own)
        settled = log.settle(len(log.settled), [guessed])
    assert log.settled == [0]
    assert settled.vetoed


def test_a_verifier_that_contradicts_a_given_token_that_it_has_seen_is_found_out():
    _, log = make()
    log.add(3, 0.9, given=True)
    block = log.take_block()
    with pytest.raises(ProtocolError, match="contradicts the token that the device gave at 0"):
        log.settle(0, [1], block.number)


def test_a_verdict_of_a_block_that_was_never_sent_is_found_out():
    _, log = make()
    log.add(3, 0.9)
    log.take_block()
    with pytest.raises(ProtocolError, match="of block 2, the newest is 1"):
        log.settle(0, [3], 2)
