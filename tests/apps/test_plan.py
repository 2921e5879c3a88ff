"""`edgedraft plan`: what it says of a machine, what it draws, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from edgedraft.errors import InvalidInput
from edgedraft_apps.cli import app
from edgedraft_apps.plan import GPUS, Question, Target, make_plan


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "120"})


def test_a_target_on_a_gpu_reads_its_weights_once_a_step():
    target = Target.on("a100", 7e9, 16)
    assert target.base == pytest.approx(7e9 * 2 / 2039e9)
    # 312 T operations a second over 2 bytes a weight and 2 operations a weight and row: operations over bandwidth.
    assert target.knee == pytest.approx(312e12 / 2039e9)
    assert target.step(2 * target.knee) == pytest.approx(2 * target.base)


def test_the_best_policy_turns_with_the_times():
    fast = make_plan(Question(0.8, 0.02, Target(0.01, 100), [0.0, 0.1]))
    assert [row.best for row in fast.rows] == ["cloud", "cloud"]
    assert fast.break_even < 0
    slow = make_plan(Question(0.8, 0.02, Target(0.1, 100), [0.03, 0.1], branches=1.1, covered=0.4))
    assert [row.best for row in slow.rows] == ["both", "both"]
    assert slow.break_even > 0
    assert slow.rows[1].both < slow.rows[1].tree < slow.rows[1].chain < slow.rows[1].sync


def test_drafts_serve_who_wants_tokens_faster_than_a_step():
    plan = make_plan(Question(0.8, 0.01, Target(0.05, 200), [0.05], goal=0.025, beside=0.004))
    assert plan.plain == 0
    assert plan.edge.clients > plan.beside.clients > 0


def test_the_tables_say_what_was_asked():
    shown = run("--verify-ms", "60", "--knee", "200", "--alpha", "0.84", "--rtt", "50,100")
    assert shown.exit_code == 0, shown.output
    assert "a step of the target takes 60.0 ms up to 200 rows" in shown.output
    lines = [line.split() for line in shown.output.splitlines() if line.strip().startswith(("50 ", "100 "))]
    assert [line[1] for line in lines] == ["60.0", "60.0"]


def test_a_tree_is_shown_where_there_is_one():
    assert "tree" not in run("--rtt", "50").output
    assert "tree" in run("--rtt", "50", "--covered", "0.4", "--branches", "1.1").output


def test_json_has_all_of_it():
    shown = json.loads(run("--rtt", "50", "--json").stdout)
    assert shown["rows"][0]["rtt"] == 0.05
    assert shown["rows"][0]["best"] in ("cloud", "sync", "chain", "tree", "both")
    assert {"clients", "gamma"} == shown["edge"].keys()


@pytest.mark.parametrize(
    ("name", "start"), [("plan.png", b"\x89PNG"), ("plan.svg", b"<?xml"), ("plan.html", b"<!doctype html>")]
)
def test_it_draws(tmp_path, name, start):
    file = tmp_path / name
    shown = run("--plot", str(file))
    assert shown.exit_code == 0, shown.output
    assert file.read_bytes().startswith(start)
    if name != "plan.png":
        assert b"RTT, ms" in file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "voodoo2"], "use one of a10"),
        (["--rtt", "soon"], "write milliseconds"),
        (["--alpha", "1"], "use 0 up to"),
        (["--verify-ms", "0"], "use a time above 0"),
        (["--knee", "0"], "use at least 1"),
        (["--bits", "64"], "of 1 to 32"),
        (["--gamma", "0"], "use 1 to 64"),
        (["--branches", "0.5"], "use at least 1"),
        (["--itl-ms", "0"], "use a time above 0"),
        (["--plot", "/nonexistent/plan.png"], "cannot be written"),
        (["--plot", "plan.doc"], "use a .png"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    shown = run(*arguments)
    assert shown.exit_code == 1
    assert words in " ".join(shown.output.split())


def test_every_gpu_has_both_figures():
    assert all(gpu.bandwidth > 1e11 and gpu.operations > 1e13 for gpu in GPUS.values())
    with pytest.raises(InvalidInput):
        Question(0.5, 0.02, Target(0.1, 1), [])
