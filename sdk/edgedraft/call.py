"""What one call needs before a byte leaves: both views of the prompt, its guard, and every check that can be made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from edgedraft.drafters.base import DrafterInfo
from edgedraft.errors import InvalidInput
from edgedraft.privacy.detect import Detectors
from edgedraft.privacy.gate import DecisionRule
from edgedraft.privacy.guard import Guard, GuardLimits, placeholder_token
from edgedraft.privacy.guards import Guards
from edgedraft.privacy.policy import Policy
from edgedraft.privacy.view import View, make_views
from edgedraft.prompt import Mode, Prompt, PromptLike
from edgedraft.sampling import SamplingParams
from edgedraft.text import StopMatcher, TextCodec
from edgedraft.transcript import Transcript
from edgedraft.wire import verify_pb2 as pb

WIRE_MODES: Final = {Mode.SEALED: pb.MODE_SEALED, Mode.CLOAKED: pb.MODE_CLOAKED, Mode.OPEN: pb.MODE_OPEN}


@dataclass(frozen=True, slots=True)
class Privacy:
    """What is private in a call, and how strictly.

    Attributes:
        mode: The privacy mode.
        rule: Who decides a token in mode `sealed`.
        limits: From which size on a piece of private text may not leave, in modes `sealed` and `cloaked`.
        detectors: What finds secrets; None takes the standard ones.
    """

    mode: Mode = Mode.SEALED
    rule: DecisionRule = field(default_factory=DecisionRule)
    limits: GuardLimits = field(default_factory=GuardLimits)
    detectors: Detectors | None = None


@dataclass(frozen=True, slots=True)
class PublicView:
    """Exactly what the cloud would see of a prompt.

    Attributes:
        view: The messages.
        tokens: Their token ids in the model's template, as they would be sent; empty in mode `local`.
        text: The text of these.
    """

    view: View
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call, checked.

    Attributes:
        mode: The privacy mode.
        rule: Who decides a token in mode `sealed`.
        device_ids: The prompt as the drafter reads it.
        public_ids: The prompt as the cloud sees it; empty in mode `local`.
        guard: Watches what leaves; None where everything or nothing may.
        placeholder: Token that stands on the wire for what is held back.
        sampling: How to choose tokens and when to stop.
        transcript: Turns tokens into the answer's text.
    """

    mode: Mode
    rule: DecisionRule
    device_ids: list[int] = field(repr=False)
    public_ids: list[int]
    guard: Guard | None
    placeholder: int
    sampling: SamplingParams
    transcript: Transcript = field(repr=False)


class Calls:
    """Makes calls for one client.

    Args:
        codec: Tokenizer and chat template.
        drafter: Facts about the drafter.
        policy: What the app forbids.
        model: The target's name, which leaves with each call.
    """

    def __init__(self, codec: TextCodec, drafter: DrafterInfo, policy: Policy, model: str) -> None:
        self._codec = codec
        self._drafter = drafter
        self._policy = policy
        self._model = model
        self._guards = Guards(codec.token_bytes)

    def view(self, prompt: PromptLike, privacy: Privacy) -> PublicView:
        """What the cloud would see of a prompt.

        Raises:
            InvalidInput: The prompt is wrong.
            PrivacyError: It must not be sent like that.
        """
        self._policy.check(privacy.mode)
        view = make_views(Prompt.of(prompt), privacy.mode, detectors=privacy.detectors).public
        tokens = self._encode(view)
        return PublicView(view, tuple(tokens), self._codec.decode(tokens))

    def make(self, prompt: PromptLike, sampling: SamplingParams, privacy: Privacy) -> Call:
        """Check all that can be checked on the device.

        Raises:
            InvalidInput: The prompt or a setting is wrong.
            PrivacyError: The policy forbids the mode, or something private stands where it would leave.
        """
        self._policy.check(privacy.mode)
        views = make_views(Prompt.of(prompt), privacy.mode, detectors=privacy.detectors)
        device, public = self._encode(views.device), self._encode(views.public)
        check_length(device, self._drafter.context_length)
        guard, placeholder = None, 0
        if privacy.mode in (Mode.SEALED, Mode.CLOAKED):
            check_length(public, self._drafter.context_length)
            placeholder = placeholder_token(self._codec.encode, self._codec.token_bytes)
            guard = self._guards.guard(views, self._codec.decode(public), privacy.limits)
            guard.check_text(self._model, "model")
            for index, token in enumerate(sampling.stop_token_ids):
                guard.check_text(self._codec.decode([token]), f"stop_token_ids[{index}]")
            guard.check_text(self._codec.decode(list(sampling.stop_token_ids)), "stop_token_ids")
        restorer = views.cloak.restorer() if views.cloak is not None else None
        transcript = Transcript(self._codec.token_bytes, StopMatcher(sampling.stop), restorer)
        return Call(privacy.mode, privacy.rule, device, public, guard, placeholder, sampling, transcript)

    def _encode(self, view: View) -> list[int]:
        if view.raw:
            return self._codec.encode(view.raw)
        return self._codec.encode_chat(view.messages) if view.messages else []


def check_length(ids: list[int], context_length: int) -> None:
    """See that a prompt fits a context with an answer.

    Raises:
        InvalidInput: It does not, or is empty.
    """
    if not ids:
        raise InvalidInput("prompt", "has no tokens", "write something")
    if len(ids) >= context_length:
        raise InvalidInput(
            "prompt", f"has {len(ids)} tokens, the context holds {context_length} with the answer", "shorten it"
        )
