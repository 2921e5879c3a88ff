"""The rules that are tried for sealed mode, and the harness that walks all of them at once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edgedraft.errors import InvalidInput
from edgedraft.privacy.gate import DecisionRule
from edgedraft.prompt import Mode
from edgedraft_apps.bench.privacy.questions import load_questions
from edgedraft_apps.bench.privacy.recall import recall_rows
from edgedraft_apps.bench.privacy.rule import PLAIN_MODES, Answer, Pair, explore, load_answers, prompt_of
from edgedraft_apps.bench.privacy.rules import (
    DEFAULT_RULE,
    MEASURES,
    RULE_SETS,
    Expected,
    Rule,
    distance,
    log_softmax,
    rule_named,
)
from edgedraft_apps.bench.privacy.tally import answer_rows, gap_closed, tallies
from edgedraft_apps.bench.privacy.texts import TextPool


def expected(private: Sequence[float], public: Sequence[float], target: Sequence[float]) -> Expected:
    """From probabilities of the first tokens; what is left over goes to the last one."""
    rows = [np.log(np.array([*each, 1 - sum(each)], np.float32)) for each in (private, public, target)]
    return Expected(*rows)


SAME = expected((0.6, 0.3), (0.6, 0.3), (0.2, 0.7))
APART = expected((0.9, 0.05), (0.05, 0.9), (0.05, 0.9))


def test_distances_are_0_where_views_agree_and_near_1_where_they_do_not() -> None:
    far = expected((0.998, 0.001), (0.001, 0.998), (0.5, 0.4))
    for measure in MEASURES:
        assert distance(measure, SAME) == pytest.approx(0, abs=1e-6)
        assert 0.9 < distance(measure, far) <= 1 + 1e-6
    assert distance("variation", APART) == pytest.approx(0.85, abs=1e-6)
    assert distance("ratio", APART) == pytest.approx(1 - 0.05 / 0.9, abs=1e-6)


def test_the_gate_leaves_to_the_device_what_is_private() -> None:
    rule = Rule("variation", 0.4)
    device = rule.decide(APART)
    assert (device.token, device.by_device, device.drafted) == (0, True, False)
    target = rule.decide(SAME)
    assert (target.token, target.by_device, target.accepted) == (1, False, False)
    assert rule.decide(replace(SAME, target=SAME.private)).accepted


def test_the_cut_vetoes_what_is_implausible_on_the_device() -> None:
    assert Rule(cut=0.4).decide(SAME).token == 1
    vetoed = Rule(cut=0.6).decide(SAME)
    assert (vetoed.token, vetoed.vetoed, vetoed.by_device) == (0, True, True)


def test_steering_keeps_a_draft_that_the_target_finds_likely_enough() -> None:
    assert Rule(target="steer", tau=0.3, beta=1).decide(SAME).accepted  # 0.2 > 0.3 · 0.6
    assert Rule(target="steer", tau=0.6, beta=1).decide(SAME).token == 1
    # The private evidence, 18 to 1 for the first token each way, outweighs the target.
    assert Rule(target="fuse", beta=1.5).decide(APART).token == 0
    assert Rule(target="fuse", beta=0).decide(APART).token == 1


def test_names_tell_rules_apart_and_find_them() -> None:
    rules = [rule for rules in RULE_SETS.values() for rule in rules]
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule_named(rule.name) == rule for rule in rules)
    assert DEFAULT_RULE in rules
    with pytest.raises(InvalidInput, match=r"cut 0\.1"):
        rule_named("gut feeling")
    for wrong in ({"measure": "feet"}, {"target": "guess"}, {"theta": 1.5}, {"cut": -1}):
        with pytest.raises(InvalidInput, match="rule"):
            Rule(**wrong)


def test_the_default_is_the_product_s() -> None:
    product = DecisionRule()
    assert (product.theta, product.cut) == (DEFAULT_RULE.theta, DEFAULT_RULE.cut)
    assert (DEFAULT_RULE.measure, DEFAULT_RULE.target) == ("variation", "verdict")


# ---------------------------------------------------------------- walking


class FakeCache:
    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.count = 0

    def new_sequence(self) -> int:
        self.count += 1
        self.texts[self.count] = []
        return self.count

    def fork(self, sequence: int, length: int) -> int:
        branch = self.new_sequence()
        self.texts[branch] = self.texts[sequence][:length]
        return branch

    def free(self, sequence: int) -> None:
        del self.texts[sequence]


class FakeModel:
    """Logits that depend on all tokens so far; counts what it is fed."""

    def __init__(self, codec, seed: int) -> None:
        self.vocab_size = codec.vocab_size
        self.manifest = SimpleNamespace(
            model=f"fake-{seed}", quantization="q0", model_fingerprint=str(seed), tokenizer_fingerprint="t"
        )
        self.seed = seed
        self.fed = 0

    def new_cache(self, tokens: int, sequences: int) -> FakeCache:
        return FakeCache()

    def forward(self, cache: FakeCache, feeds) -> np.ndarray:
        for feed in feeds:
            cache.texts[feed.sequence] += list(feed.tokens)
            self.fed += len(feed.tokens)
        return np.stack([self.logits(cache.texts[feed.sequence]) for feed in feeds])

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        # Mostly the same for both models and for all beginnings, so that they agree now and then.
        random = np.random.default_rng([zlib.crc32(repr(tokens[-2:]).encode()), len(tokens) % 7])
        own = np.random.default_rng([self.seed, zlib.crc32(repr(tokens).encode())])
        return (6 * random.random(self.vocab_size) + own.random(self.vocab_size)).astype(np.float32)

    def greedy(self, prompt: Sequence[int], eos: Sequence[int], limit: int) -> list[int]:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + limit and tokens[-1] not in eos:
            tokens.append(int(np.argmax(self.logits(tokens))))
        return tokens[len(prompt) :]


@pytest.fixture
def pair(codec) -> Pair:
    return Pair(FakeModel(codec, 1), FakeModel(codec, 2), codec, codec.encode("-")[0])


def test_a_pool_computes_what_the_model_would_and_shares_beginnings(codec) -> None:
    model = FakeModel(codec, 1)
    pool = TextPool(model, 1000, 10)
    start = tuple(range(20, 40))
    texts = [(*start, 50, 51), (*start, 50, 52), (*start[:10], 7)]
    found = pool.expect(texts)
    assert set(found) == set(texts)
    for text in texts:
        np.testing.assert_array_equal(found[text], log_softmax(model.logits(list(text))))
    assert model.fed == 22 + 1 + 1
    longer = [(*texts[0], 60), (*texts[0], 61)]
    assert set(pool.expect(longer)) == set(longer)
    assert model.fed == 24 + 2
    assert pool.expect(longer).keys() == set(longer)
    assert model.fed == 26


def test_plain_modes_are_greedy_decoding_and_the_ends_of_the_gate_are_device_and_target(pair, tmp_path) -> None:
    (question,) = load_questions()[12:13]
    ways = [*PLAIN_MODES, Rule("variation", 0.0), Rule("variation", 0.2)]
    answers = {answer.way: answer for answer in explore(pair, [question], ways, tmp_path / "a", lambda *report: None)}
    codec, prompt = pair.codec, prompt_of(question)
    device = codec.encode_chat(prompt.as_dicts())
    public = codec.encode_chat(prompt.public_view(Mode.SEALED).messages)
    for way, model, start in (("local", pair.drafter, device), ("open", pair.target, device)):
        tokens = model.greedy(start, codec.eos_token_ids, 80)
        assert (answers[way].text, answers[way].tokens) == (codec.decode(tokens), len(tokens))
    tokens = pair.target.greedy(public, codec.eos_token_ids, 80)
    assert answers["public"].text == codec.decode(tokens)
    assert answers["local"].by_device == answers["local"].tokens
    assert answers["open"].by_device == 0
    assert answers["variation > 0"].text == answers["local"].text
    assert answers["variation > 0"].drafted == 0
    mixed = answers["variation > 0.2"]
    assert mixed.by_device + mixed.drafted - mixed.vetoed == mixed.tokens


def test_a_run_that_was_cut_goes_on_where_it_was(pair, tmp_path) -> None:
    questions, ways = load_questions()[:3], ["local", Rule("variation", 0.4, cut=0.1)]
    whole = explore(pair, questions, ways, tmp_path / "whole", lambda *report: None)
    assert len(whole) == 6
    file = tmp_path / "cut"
    assert explore(pair, questions, ways, file, lambda *report: None, seconds=0) == []
    explore(pair, questions[:1], ways, file, lambda *report: None)
    with file.open("a") as half:
        half.write('{"question": "extr')
    fed = pair.target.fed
    assert set(explore(pair, questions, ways, file, lambda *report: None)) == set(whole)
    assert pair.target.fed > fed
    fed = pair.target.fed
    assert set(explore(pair, questions, ways, file, lambda *report: None)) == set(whole)
    assert pair.target.fed == fed
    other = replace(pair, target=FakeModel(pair.codec, 3))
    with pytest.raises(InvalidInput, match="another pair"):
        explore(other, questions, ways, file, lambda *report: None)
    file.write_text("{}\nno json\n")
    with pytest.raises(InvalidInput, match="damaged"):
        load_answers(file)


# ---------------------------------------------------------------- counting


def answer(question: str, way: str, right: bool, **changes) -> Answer:
    facts = {"text": "", "wire": "", "tokens": 10, "drafted": 8, "accepted": 6, "by_device": 2, "held": 1, "vetoed": 1}
    return Answer(question, way, right=right, **{**facts, **changes})


def test_answers_are_counted_by_kind_and_against_the_goals() -> None:
    questions = [question for question in load_questions() if question.kind in ("extraction", "code")]
    rights = {"local": 0.25, "open": 0.75, "cloaked": 0.75, "public": 0.0, DEFAULT_RULE.name: 0.5}
    answers = []
    for way, share in rights.items():
        by_kind = {kind: [q for q in questions if q.kind == kind] for kind in ("extraction", "code")}
        for asked in by_kind.values():
            answers += [answer(q.id, way, index < share * len(asked)) for index, q in enumerate(asked)]
    found = tallies([*answers, answer(questions[0].id, "unfinished", True)], questions)
    assert set(found) == set(rights)
    sealed = found[DEFAULT_RULE.name]
    assert (sealed.right, sealed.total, sealed.alpha) == ({"extraction": 50, "code": 50}, 50, 0.75)
    assert (sealed.by_device, sealed.held, sealed.vetoed) == (0.2, 0.1, 0.1)
    assert gap_closed(sealed, found["local"], found["open"]) == {"extraction": 0.5, "code": 0.5}
    assert all(row.ok is not False for row in answer_rows(found, DEFAULT_RULE.name))
    worse = {**found, DEFAULT_RULE.name: found["public"], "cloaked": found["local"]}
    assert sum(row.ok is False for row in answer_rows(worse, DEFAULT_RULE.name)) == 2 + 2 + 1


def test_recall_counts_what_the_wire_tells() -> None:
    question = load_questions()[0]
    silent = answer(question.id, "rule", True, wire="The number is ___ ___.")
    assert [row.value for row in recall_rows([silent], [question])] == [0, 0, 0, 0]
    telling = answer(question.id, "rule", True, wire="Electrician Bruno: 030 5550 1182 comes on Mondays")
    whole, share, words, numbers = (row.value for row in recall_rows([telling], [question]))
    assert whole == 0.25
    assert 0.25 < share < 1
    assert 0 < words < 1
    assert 0 < numbers < 1
