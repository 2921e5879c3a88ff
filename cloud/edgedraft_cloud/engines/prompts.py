"""How the prompts that wait to be read share a step."""

from __future__ import annotations

from collections.abc import Iterable


def piece(unread: Iterable[int], room: int) -> int:
    """Most tokens of each prompt that go into a step, so that no long one keeps the others waiting.

    What short ones leave of their even shares is divided among the rest: max-min fairness (Bertsekas and Gallager, Data
    Networks, section 6.5.2).

    Args:
        unread: Tokens of each prompt that are not read yet.
        room: Tokens that the step may read, all prompts together.

    Returns:
        At least 1: in a step with less room than prompts some get nothing.
    """
    prompts = sorted(unread)
    share = room
    for index, tokens in enumerate(prompts):
        share = room // (len(prompts) - index)
        room -= min(tokens, share)
    return max(1, share)
