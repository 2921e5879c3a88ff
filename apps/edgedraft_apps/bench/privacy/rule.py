"""Settles the rule of mode `sealed` offline: answers private questions token by token, under every rule at once.

All rules walk on in step. Where they have written the same text so far, which is most of the time, the models compute
it once; what is left goes through each model in one batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgedraft.errors import InvalidInput
from edgedraft.privacy.cloak import Cloak
from edgedraft.privacy.guard import Guard, GuardLimits, placeholder_token
from edgedraft.privacy.view import Views, make_views
from edgedraft.prompt import Message, Mode, Part, Prompt
from edgedraft.runtime.compiled import CompiledModel
from edgedraft.text import TextCodec
from edgedraft_apps.bench.privacy.questions import MAX_TOKENS, Question
from edgedraft_apps.bench.privacy.rules import Decision, Expected, LogProbs, Rule
from edgedraft_apps.bench.privacy.texts import Text, TextPool

Progress = Callable[[str, int, int, str], None]
PLAIN_MODES: Final = {
    "local": ("device", None),
    "open": ("device", "device"),
    "public": ("public", "public"),
    "cloaked": ("cloaked", "cloaked"),
}
"""What rules are compared with: the views of drafter and target; `public` is a cloud that sees the public view only."""

_TEXTS: Final = 16
"""Texts in a batch from which on no question is begun; more add little to the speed of two cores."""
_POOL_TOKENS: Final = 16384


@dataclass(frozen=True, slots=True)
class Answer:
    """How a question was answered in one way.

    Attributes:
        question: Its id.
        way: A plain mode, or the name of a rule.
        text: The answer, as the user sees it.
        wire: What the cloud saw of it.
        right: Whether it is right.
        tokens: Its length.
        drafted: Drafts that the target judged.
        accepted: Of these, those it would have chosen itself.
        by_device: Tokens that the device decided, held-back ones included.
        held: Tokens that the guard held back.
        vetoed: Tokens of the target that the device replaced.
    """

    question: str
    way: str
    text: str
    wire: str
    right: bool
    tokens: int
    drafted: int
    accepted: int
    by_device: int
    held: int
    vetoed: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A drafter, a target, and their tokenizer.

    Attributes:
        drafter: The drafter.
        target: The target.
        codec: Of both.
        placeholder: Token that stands on the wire for one that was held back.
    """

    drafter: CompiledModel
    target: CompiledModel
    codec: TextCodec
    placeholder: int

    @classmethod
    def load(cls, drafter: Path, target: Path, threads: int | None = None) -> Pair:
        """Load two artifact folders.

        Raises:
            ModelError: One of them cannot be used.
            InvalidInput: They are no pair.
        """
        codec = TextCodec.load(target)
        models = [CompiledModel.load(folder, threads=threads) for folder in (drafter, target)]
        if len({model.manifest.tokenizer_fingerprint for model in models}) > 1:
            raise InvalidInput("drafter", "has another tokenizer than the target", "use a drafter of its family")
        return cls(models[0], models[1], codec, placeholder_token(codec.encode, codec.token_bytes))

    @property
    def facts(self) -> dict[str, Any]:
        """What an answer depends on besides question and way."""
        drafter, target = self.drafter.manifest, self.target.manifest
        return {
            "drafter": f"{drafter.model} {drafter.quantization}",
            "drafter_fingerprint": drafter.model_fingerprint,
            "target": f"{target.model} {target.quantization}",
            "target_fingerprint": target.model_fingerprint,
            "placeholder": self.codec.decode([self.placeholder]),
        }


@dataclass(slots=True)
class Asked:
    """A question with its prompts in token ids.

    Attributes:
        question: The question.
        codec: Tokenizer.
    """

    question: Question
    codec: TextCodec
    sealed: Views = field(init=False)
    cloaked: Views = field(init=False)

    def __post_init__(self) -> None:
        prompt = prompt_of(self.question)
        self.sealed, self.cloaked = (make_views(prompt, mode) for mode in (Mode.SEALED, Mode.CLOAKED))

    def new_guard(self) -> Guard:
        """The guard of one answer in mode `sealed`."""
        secrets = [secret.text for secret in self.sealed.secrets]
        public = self.codec.decode(self.ids("public"))
        return Guard(secrets, self.sealed.private_texts, public, self.codec.token_bytes, GuardLimits())

    def ids(self, view: str) -> Text:
        """Token ids of a view."""
        views = {"device": self.sealed.device, "public": self.sealed.public, "cloaked": self.cloaked.public}
        return tuple(self.codec.encode_chat(views[view].messages))

    @property
    def cloak(self) -> Cloak:
        """Puts values back into an answer of mode `cloaked`."""
        assert self.cloaked.cloak is not None
        return self.cloaked.cloak


def prompt_of(question: Question) -> Prompt:
    """A question as an app would ask it, with its secrets marked."""
    spans = sorted(
        (start, start + len(value), kind)
        for kind, values in question.secrets.items()
        for value in values
        for start in _places(question.private, value)
    )
    parts = [Part(f"{question.public}\n\n")]
    position = 0
    for start, end, kind in spans:
        parts.append(Part(question.private[position:start], private=True))
        parts.append(Part(question.private[start:end], secret=True, kind=kind))
        position = end
    parts.append(Part(question.private[position:], private=True))
    return Prompt((Message("user", tuple(part for part in parts if part.text)),))


class _Walk:
    """One answer in the making.

    Args:
        asked: The question.
        way: A plain mode or a rule.
        placeholder: See `Pair`.
    """

    def __init__(self, asked: Asked, way: str | Rule, placeholder: int) -> None:
        self._asked = asked
        self._way = way
        self._placeholder = placeholder
        self._tokens: list[int] = []
        self._wire: list[int] = []
        self._counts = dict.fromkeys(("drafted", "accepted", "by_device", "held", "vetoed"), 0)
        self._guard = asked.new_guard()
        self._session = self._guard.session()
        self._trail = self._guard.root()
        device, cloud = PLAIN_MODES[way] if isinstance(way, str) else ("device", "public")
        self._device = asked.ids(device)
        self._cloud = None if cloud is None else asked.ids(cloud)

    @cached_property
    def name(self) -> str:
        return self._way if isinstance(self._way, str) else self._way.name

    @property
    def done(self) -> bool:
        full = len(self._tokens) >= MAX_TOKENS[self._asked.question.kind]
        return full or bool(self._tokens and self._tokens[-1] in self._asked.codec.eos_token_ids)

    @property
    def private_text(self) -> Text:
        return (*self._device, *self._tokens)

    @property
    def public_text(self) -> Text | None:
        """What the target sees, and the drafter's public view where there is a rule."""
        return None if self._cloud is None else (*self._cloud, *self._wire)

    @property
    def drafter_texts(self) -> list[Text]:
        public = None if isinstance(self._way, str) else self.public_text
        return [self.private_text] if public is None else [self.private_text, public]

    def step(self, drafter: dict[Text, LogProbs], target: dict[Text, LogProbs]) -> None:
        """Decide the next token."""
        private = drafter[self.private_text]
        draft, public = int(np.argmax(private)), self.public_text
        trail, held = self._guard.step(self._trail, draft)
        if isinstance(self._way, Rule):
            held = held or self._session.leave(draft, trail)
            if held:
                decision = Decision(draft, drafted=False, accepted=False)
            else:
                assert public is not None
                decision = self._way.decide(Expected(private, drafter[public], target[public]))
        elif public is None:
            held, decision = False, Decision(draft, drafted=False, accepted=False)
        else:
            token = int(np.argmax(target[public]))
            held, decision = False, Decision(token, drafted=True, accepted=token == draft)
        if decision.token != draft:
            trail, _ = self._guard.step(self._trail, decision.token)
            trail.known = True
        self._trail = trail
        self._tokens.append(decision.token)
        self._wire.append(self._placeholder if held else decision.token)
        counted = {"drafted": decision.drafted, "accepted": decision.accepted, "by_device": decision.by_device}
        for name, value in {**counted, "held": held, "vetoed": decision.vetoed}.items():
            self._counts[name] += value

    def answer(self) -> Answer:
        codec, question = self._asked.codec, self._asked.question
        text = codec.decode(self._tokens)
        if self._way == "cloaked":
            text = self._asked.cloak.restore(text)
        wire = codec.decode(self._wire) if self._cloud is not None else ""
        right = question.is_right(text)
        return Answer(question.id, self.name, text, wire, right, len(self._tokens), **self._counts)


def explore(
    pair: Pair,
    questions: Sequence[Question],
    ways: Sequence[str | Rule],
    out: Path,
    progress: Progress,
    seconds: float | None = None,
) -> list[Answer]:
    """Answer questions in every way, and append each answer to a file as it is whole.

    Args:
        pair: The models.
        questions: What to ask.
        ways: Plain modes and rules.
        out: JSON Lines; what it has of these questions and ways is not done again.
        progress: Told how far it is.
        seconds: Begin no question after this time; None goes through to the end.

    Returns:
        The answers to these questions in these ways that there are by now.

    Raises:
        InvalidInput: The file is of another pair or damaged, or cannot be written.
    """
    asked = {question.id for question in questions}
    names = {way if isinstance(way, str) else way.name for way in ways}
    _cut_half_a_line(out)
    answers = {(answer.question, answer.way): answer for answer in load_answers(out, pair.facts)}
    waiting = [
        [way for way in ways if (question.id, way if isinstance(way, str) else way.name) not in answers]
        for question in questions
    ]
    total, end = len(questions) * len(ways), None if seconds is None else time.monotonic() + seconds
    drafter, target = (TextPool(model, _POOL_TOKENS, 16 * _TEXTS) for model in (pair.drafter, pair.target))
    queue = [(question, left) for question, left in zip(questions, waiting, strict=True) if left]
    walks: list[_Walk] = []
    try:
        with out.open("a", encoding="utf-8") as file:
            if not file.tell():
                file.write(json.dumps(pair.facts, ensure_ascii=False) + "\n")
            while True:
                if queue and len(_texts(walks)) < _TEXTS and (end is None or time.monotonic() < end):
                    question, left = queue.pop(0)
                    walks += [_Walk(Asked(question, pair.codec), way, pair.placeholder) for way in left]
                if not walks:
                    break
                _advance(walks, drafter, target)
                for walk in (walk for walk in walks if walk.done):
                    answer = walk.answer()
                    answers[answer.question, answer.way] = answer
                    file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
                file.flush()
                walks = [walk for walk in walks if not walk.done]
                progress("answer", total - sum(len(left) for _, left in queue) - len(walks), total, "answers")
    except OSError as error:
        raise InvalidInput("out", f"{out} cannot be written ({error.strerror})", "choose another place") from error
    return [answer for answer in answers.values() if answer.question in asked and answer.way in names]


def load_answers(file: Path, facts: dict[str, Any] | None = None) -> list[Answer]:
    """Read what `explore` wrote; nothing where there is no file.

    Args:
        file: The file.
        facts: Of the pair that it must be of; None takes any.

    Raises:
        InvalidInput: It is of another pair, or damaged.
    """
    if not file.exists():
        return []
    cure = "choose another file, or move this one away"
    lines = file.read_text(encoding="utf-8").splitlines()
    if not lines:
        return []
    try:
        head, *rest = map(json.loads, lines)
        answers = [Answer(**entry) for entry in rest]
    except (ValueError, TypeError) as error:
        raise InvalidInput("out", f"{file} is damaged ({error})", cure) from error
    if facts is not None and head != facts:
        raise InvalidInput("out", f"{file} is of another pair", cure)
    return answers


def _cut_half_a_line(file: Path) -> None:
    """Drop what a run that was killed had not written to the end of the line."""
    if file.exists() and not (data := file.read_bytes()).endswith(b"\n"):
        file.write_bytes(data[: data.rfind(b"\n") + 1])


def _advance(walks: Sequence[_Walk], drafter: TextPool, target: TextPool) -> None:
    from_drafter = drafter.expect(text for walk in walks for text in walk.drafter_texts)
    public = {text for walk in walks if (text := walk.public_text) is not None}
    from_target = target.expect(public)
    for walk in walks:
        walk.step(from_drafter, from_target)


def _texts(walks: Iterable[_Walk]) -> set[Text]:
    return {walk.public_text or walk.private_text for walk in walks}


def _places(text: str, value: str) -> list[int]:
    places, start = [], text.find(value)
    while start >= 0:
        places.append(start)
        start = text.find(value, start + len(value))
    return places
