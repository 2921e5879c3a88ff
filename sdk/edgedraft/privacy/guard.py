"""The guard between drafter and wire: which tokens may leave, over all that left before.

A *secret* never leaves, nor a piece of it from a number of words or characters on, and no run of a number of words of
other *private text* (`GuardLimits`). Both are matched in normalised text (`normalise`) over everything that the
verifier can put together: along the path of the draft, in the order of sending within a session, and in the order of
sending over all sessions of the guard; as the text stands, with spelled numbers read as digits, and by its digits
alone, from six on or a whole number of four or more, where no more than some sixty letters part them. A secret date is
known in its usual spellings. What also stands in the public view is free. Pieces too short to be held back are counted:
of each secret only so many characters leave in pieces that a word starts with, of four letters or of three characters
with a digit, or that stand anywhere, of four with a digit.

What is not promised: the guard compares, it does not understand. A drafter that means to tell can do so in other words,
in base64 or hexadecimal, in another script or language, in another notation ("1.2 million"), reversed, with letters put
between, in pieces that are smaller than what is counted, by a short secret inside a longer word, by naming positions
("the third digit is 4"), or through which tokens are held back and which are not. The guard is for drafters that repeat
their prompt, as language models do; against a drafter that is an enemy nothing helps but not to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from edgedraft.errors import InvalidInput, LeakError
from edgedraft.privacy.normalise import GAP, squeeze
from edgedraft.privacy.patterns import GuardLimits, Patterns
from edgedraft.privacy.reading import (
    NOT_FOUND,
    NOTHING,
    Found,
    Reading,
    common_start,
    contains,
    interrupted,
    is_torn,
    parted,
    read,
)

__all__ = ["Guard", "GuardLimits", "GuardSession", "Trail", "placeholder_token"]

_STRADDLE: Final = 512  # characters; more than what is matched is long
_PLACEHOLDERS: Final = (" ___", " …", "___", "…", " ...", "...", " _", "_", " -", "-", ".")


class Trail:
    """The text of a path of the draft up to one token; what a branch starts from.

    Attributes:
        held: Whether the token has to stay on the device. `GuardSession.leave` may still find that it has to.
        known: Whether the verifier put it there itself, so that it stands on the wire whatever comes of it.
    """

    __slots__ = ("_before", "_found", "_parent", "_reading", "_token", "_wire", "held", "known")

    def __init__(self, parent: Trail | None, token: int, reading: Reading, found: Found) -> None:
        self._parent = parent
        self._token = token
        self._before = parent._reading if parent is not None else NOTHING
        self._reading: Reading = reading  # of the device's text
        self._found = found
        self.known = False
        self._wire: Reading | None = None  # of the path as the verifier sees it; once that is settled
        self.held = found.forbidden

    def __repr__(self) -> str:
        return f"<Trail: held={self.held}>"


class Guard:
    """Knows what is private and what has left, for all generations with the same private prompt.

    Not thread-safe: all calls belong on one thread. Its `repr` and its errors hold no private text.

    Args:
        secrets: Texts of which not even a piece may leave.
        private_texts: Texts of which no longer run of words may leave.
        public_text: All that the verifier sees anyway; the public view of the prompt.
        token_bytes: Bytes of a token; none for special tokens.
        limits: From which size on a piece may not leave.
        names: Which of the secrets are names of people; others are names if they are written like one.
        spent: Of each secret, in compact form, the bits of its characters that left in pieces; guards that may come to
            know the same secret share it. None: of this guard alone.

    Raises:
        InvalidInput: A secret has neither letters nor digits and so cannot be found in a text.
    """

    def __init__(
        self,
        secrets: Iterable[str],
        private_texts: Iterable[str],
        public_text: str,
        token_bytes: Callable[[int], bytes],
        limits: GuardLimits | None = None,
        names: Iterable[str] = (),
        spent: dict[str, int] | None = None,
    ) -> None:
        self._patterns = Patterns(limits or GuardLimits())
        self._token_bytes = token_bytes
        self._seen: set[tuple[str, bool]] = set()
        self._private: set[str] = set()
        self._published = ""
        self._spent = {} if spent is None else spent
        self._everything = NOTHING  # all that left, of all sessions, in the order of sending
        self._told = NOTHING  # the same, with what devices agreed to in between
        self.extend(secrets, private_texts, public_text, names)

    def __repr__(self) -> str:
        return f"<Guard: {self._patterns!r}>"

    def extend(
        self,
        secrets: Iterable[str] = (),
        private_texts: Iterable[str] = (),
        public_text: str = "",
        names: Iterable[str] = (),
    ) -> None:
        """Add texts, as a conversation goes on. Paths that were stepped before are not looked at again.

        Raises:
            InvalidInput: A secret has neither letters nor digits.
        """
        names = set(names)
        if public_text and public_text != self._published:
            # A conversation says all again, and something more, and many questions begin with one text; what straddles
            # the border is published too, from the start of a line, for half a word or half a number is another one.
            begin = common_start(self._published, public_text) - _STRADDLE
            self._patterns.publish(public_text[public_text.rfind("\n", 0, max(0, begin)) + 1 :])
            self._published = public_text
        for index, secret in enumerate(secrets):
            known = (secret, secret in names)  # a name may have been said before without telling that it is one
            if not secret.strip() or known in self._seen:
                continue
            if not self._patterns.add_secret(secret, is_name=secret in names or None):
                raise InvalidInput(
                    f"secrets[{index}]", "has no letter and no digit", "mark text that can be recognised"
                )
            self._seen.add(known)
        for text in private_texts:
            if text not in self._private:
                self._patterns.add_private(text)
                self._private.add(text)

    def root(self) -> Trail:
        """The path before the first generated token."""
        trail = Trail(None, 0, NOTHING, NOT_FOUND)
        trail._wire = NOTHING
        return trail

    def step(self, trail: Trail, token: int) -> tuple[Trail, bool]:
        """Go on by one token of the device's text, in constant time.

        Args:
            trail: The path so far.
            token: What the device has next.

        Returns:
            The path with the token, and whether the token has to be held back: something that may not leave ends in it.
        """
        reading, found = read(trail._reading, self._token_bytes(token), self._patterns)
        after = Trail(trail, token, reading, found)
        return after, after.held

    def _read(self, reading: Reading, data: bytes, trail: Trail | None) -> tuple[Reading, Found]:
        """Read a token in another view; most views are one and the same most of the time."""
        if trail is not None and reading == trail._before:
            return trail._reading, trail._found
        return read(reading, data, self._patterns)

    def _spend(self, found: Sequence[Found]) -> bool:
        """Count the pieces of secrets that are about to leave; False, and nothing counted, if they must not."""
        for each in found:
            if each is not NOT_FOUND:
                break
        else:
            return True
        if any(each.forbidden for each in found):
            return False
        spent, fits = self._add_up(found)
        if fits:
            self._spent.update(spent)
        return fits

    def _add_up(self, found: Iterable[Found]) -> tuple[dict[str, int], bool]:
        """What would have left of secrets with these pieces, and whether so much may."""
        spent: dict[str, int] = {}
        fits = True
        for secret, bits in (share for each in found for share in each.shares):
            compact = self._patterns.watched[secret]
            known = spent.get(compact, self._spent.get(compact, 0))
            fits = fits and not (bits & ~known and self._patterns.exceeds(secret, bits | known))
            spent[compact] = bits | known
        return spent, fits

    def allows(self, trail: Trail) -> bool:
        """Whether a token may leave as far as its own path tells, or would have to be held back in any case.

        Args:
            trail: The path with the token.
        """
        return not trail.held and (trail._found is NOT_FOUND or self._add_up((trail._found,))[1])

    def session(self) -> GuardSession:
        """Watch over one more session."""
        return GuardSession(self)

    def check_public(self, text: str, place: str) -> None:
        """Check a text that leaves as public: what it says that was not published.

        What was published may look private where its spaces are left out (`and rewrite`), and is public all the same.

        Args:
            text: The text.
            place: What it is, for the error.

        Raises:
            LeakError: Something that may not leave stands in a line that was not published.
        """
        unknown = [line for line in text.splitlines() if not self._patterns.is_public(line)]
        self.check_text("\n".join(unknown), place)

    def check_text(self, text: str, place: str = "text", *, cut: bool = False) -> None:
        """Check a text that leaves by another way: a model's name, a stop string, an error report, a frame's text.

        Args:
            text: The text.
            place: What it is, for the error.
            cut: It is cut out of a longer text, so that words may go on at both ends.

        Raises:
            LeakError: Something that may not leave stands in it.
        """
        if contains(text, self._patterns, cut=cut):
            raise LeakError("private text", place, "leave it out, or mark it as public in the prompt")


class GuardSession:
    """Watches what leaves in one session, in the order of sending."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sent = NOTHING
        self._last: Trail | None = None
        self._last_told: Trail | None = None

    def __repr__(self) -> str:
        return "<GuardSession>"

    def leave(self, token: int, trail: Trail | None = None) -> bool:
        """Ask for a token that is about to be sent, in constant time.

        Call it for each token that goes on the wire as itself, drafted or given, in the order of sending; not for those
        that `Guard.step` held back.

        Args:
            token: The token.
            trail: The path with this token, as `Guard.step` gave it. Without it the text of the path as the verifier
                sees it is not watched, only the order of sending.

        Returns:
            True: it must be held back, and the placeholder sent. False: it counts as left.
        """
        return self._tell(token, trail, sent=True)

    def agree(self, token: int, trail: Trail) -> bool:
        """Ask for a token that the verifier has said before the device has sent it: to agree tells that it is right.

        Args:
            token: The token.
            trail: The path with this token.

        Returns:
            Whether the device may; if so, it counts as told.
        """
        return not self._tell(token, trail, sent=False)

    def _tell(self, token: int, trail: Trail | None, *, sent: bool) -> bool:
        guard = self._guard
        if trail is not None and trail.held:
            return True
        before = trail._parent if trail is not None else None
        data = guard._token_bytes(token)

        def go_on(reading: Reading, last: Trail | None) -> tuple[Reading, Found]:
            follows = before is not None and before is last
            return guard._read(reading if follows else parted(reading), data, trail)

        told, found_told = go_on(guard._told, self._last_told)
        own, everything, found = self._sent, guard._everything, [found_told]
        if sent:
            as_told = everything == guard._told and self._last is self._last_told  # nothing was agreed to of late
            own, found_own = go_on(own, self._last)
            everything, found_everything = (told, found_told) if as_told else go_on(everything, self._last)
            found += [found_own, found_everything]
        wire: Reading | None = None
        torn = False
        if trail is not None:
            found.append(trail._found)
            if trail._wire is None and before is not None:
                wire = before._wire if before._wire is not None else _wire_of(before, guard)
                # Half a character says nothing to the target, and the placeholder between the halves hides nothing.
                torn = is_torn(wire, data)
                wire, found_wire = guard._read(wire, data, trail)
                found.append(found_wire)
        if torn or not guard._spend(found):
            if trail is not None:
                trail.held = True
            return True
        guard._told, self._last_told = told, trail
        if sent:
            self._sent, guard._everything, self._last = own, everything, trail
        if wire is not None and trail is not None:
            trail._wire, trail._parent = wire, None
        return False


def _wire_of(trail: Trail, guard: Guard) -> Reading:
    """The path as the verifier sees it, for a token whose fate is settled, and its ancestors'."""
    chain = []
    node = trail
    while node._wire is None and node._parent is not None:
        chain.append(node)
        node = node._parent
    reading = node._wire or NOTHING
    for node in reversed(chain):
        if node.held and not node.known:
            reading = interrupted(reading)
        else:
            reading, _ = guard._read(reading, guard._token_bytes(node._token), node)
        node._wire, node._parent = reading, None
    return reading


def placeholder_token(encode: Callable[[str], Sequence[int]], token_bytes: Callable[[int], bytes]) -> int:
    """A single token that stands on the wire for one that is held back: a blank to fill in, or dots.

    Args:
        encode: Text to token ids.
        token_bytes: Bytes of a token.

    Raises:
        InvalidInput: The tokenizer has no such token.
    """
    for text in _PLACEHOLDERS:
        ids = encode(text)
        if len(ids) == 1:
            shown = squeeze(token_bytes(ids[0]).decode("utf-8", "replace"))
            if not shown.text and shown.last == GAP:
                return ids[0]
    raise InvalidInput("tokenizer", "has no single token for a blank, dots or a full stop", "use another model pair")
