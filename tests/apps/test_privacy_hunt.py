"""The hunt for leaks with real clients, and what the guard costs those who have nothing to hide."""

from __future__ import annotations

import pytest

from edgedraft.privacy.guard import GuardLimits
from edgedraft.privacy.view import make_views
from edgedraft.prompt import Mode, Prompt
from edgedraft_apps.bench.privacy.hunt import WAYS, hunt, hunt_rows
from edgedraft_apps.bench.privacy.ordinary import PROMPTS, Answered, alarm_rows, cost_rows
from edgedraft_apps.bench.privacy.planted import ECHOES, planted_prompts
from edgedraft_apps.bench.prompts import load_prompts

LOOSE = GuardLimits(secret_words=64, secret_chars=64, private_words=64)


@pytest.mark.parametrize("mode", [Mode.SEALED, Mode.CLOAKED])
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_leaves_however_the_echo_is_cut(codec, way: str, mode: Mode) -> None:
    held = 0
    echoes = list(ECHOES)[WAYS.index(way) % 2 :: 2]
    for number, (planted, how) in enumerate(zip(planted_prompts(len(echoes), seed=3), echoes, strict=True)):
        hunted = await hunt(planted, how, way, mode, codec, f"test.{number}")
        assert not hunted.leaks
        assert hunted.frames > 2
        assert hunted.astray == 0
        held += hunted.held
    assert held > 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_guard_that_lets_pieces_pass_is_found_out(codec, way: str) -> None:
    (planted,) = planted_prompts(1, seed=3)
    hunted = await hunt(planted, "verbatim", way, Mode.SEALED, codec, "test", LOOSE)
    assert "piece" in {leak.what for leak in hunted.leaks}


async def test_figures_of_a_hunt_are_over_both_modes(codec) -> None:
    rows = await hunt_rows(codec, 4, lambda *report: None)
    goals = [row for row in rows if row.goal is not None]
    assert len(goals) == 8
    assert all(row.ok for row in goals)


def answered(codec, prompt: str, answer: str) -> Answered:
    return Answered(prompt, make_views(Prompt.of(prompt), Mode.SEALED), tuple(codec.encode(answer)))


def test_what_repeats_the_prompt_is_held_back_and_no_false_alarm(codec) -> None:
    prompt = "We close the branch in the valley after the harvest and nobody there knows yet."
    echo = answered(codec, prompt, "They close the branch in the valley after the harvest.")
    plain = answered(codec, prompt, "Some shop will soon be shut, and its people have not been told.")
    held, false = (row.value for row in alarm_rows([echo, plain], codec))
    assert held > 0.02
    assert false == 0
    assert [row.value for row in alarm_rows([plain], codec)] == [0, 0]


async def test_costs_are_told_by_step(codec) -> None:
    rows = await cost_rows([answered(codec, "Why is the sky blue?", "Because light scatters in the air. " * 3)], codec)
    assert all(row.value > 0 for row in rows)
    assert rows[-1].goal == 50


def test_there_are_a_hundred_everyday_prompts() -> None:
    prompts = {prompt.text for prompt in load_prompts(PROMPTS)}
    assert len(prompts) == 100
