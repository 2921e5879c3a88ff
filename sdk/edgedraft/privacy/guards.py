"""The guards of one client: generations that keep the same private text are watched by one guard, as one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from edgedraft.privacy.guard import Guard, GuardLimits
from edgedraft.privacy.view import Views

KEPT: Final = 256
"""Guards that are remembered, those used last. Under one that is forgotten only the pieces of its secrets count on."""
SPENT_KEPT: Final = 1 << 14
"""Secrets of which it is remembered what left in pieces."""
_TELLING: Final = 32
"""From so many characters on, a private text that two prompts share makes them one matter; a secret always does."""


class Guards:
    """Finds the guard of a prompt, and makes it where there is none.

    A conversation says its earlier messages again, and many questions may go to one private note: what leaves for one
    of them counts for all, so that a secret does not leave piece by piece.

    Args:
        token_bytes: The bytes of a token.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._guards: OrderedDict[int, Guard] = OrderedDict()
        self._known: dict[tuple[GuardLimits, str], int] = {}
        self._spent: dict[str, int] = {}  # two guards may turn out to be of one matter: neither forgets what left
        self._count = 0

    def guard(self, views: Views, public_text: str, limits: GuardLimits) -> Guard:
        """The guard of a prompt.

        Args:
            views: Of the prompt.
            public_text: What the verifier sees of it.
            limits: From which size on a piece may not leave; guards of other limits know nothing of each other.

        Raises:
            InvalidInput: A secret has neither letters nor digits.
        """
        secrets = [secret.text for secret in views.secrets]
        names = [secret.text for secret in views.secrets if secret.kind == "PERSON"]
        own = (text for text in views.private_texts if _tells(text) and text not in views.common_texts)
        # And the prompt as a whole, which may come again.
        telling = [(limits, text) for text in (*secrets, *own, "\0".join(views.private_texts))]
        number = next((self._known[each] for each in telling if each in self._known), None)
        if number is None:
            guard = Guard(secrets, views.private_texts, public_text, self._token_bytes, limits, names, self._spent)
            self._count += 1
            number = self._count
            self._guards[number] = guard
        else:
            guard = self._guards[number]
            guard.extend(secrets, views.private_texts, public_text, names)
        self._guards.move_to_end(number)
        self._known.update(dict.fromkeys(telling, number))
        if len(self._guards) > KEPT:
            gone, _ = self._guards.popitem(last=False)
            self._known = {each: owner for each, owner in self._known.items() if owner != gone}
        while len(self._spent) > SPENT_KEPT:
            del self._spent[next(iter(self._spent))]
        return guard


def _tells(text: str) -> bool:
    return len(text) >= _TELLING
