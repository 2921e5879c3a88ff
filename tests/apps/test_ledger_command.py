"""`edgedraft ledger show`: what left, what was held back, and that a damaged file is told behind what is genuine."""

import json

import pytest
from typer.testing import CliRunner

from edgedraft.privacy.ledger import Ledger
from edgedraft.privacy.sealed_file import ledger_key
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb
from edgedraft_apps.cli import app

FRAMES = [
    ("up", pb.ClientFrame(open=pb.Open(model="toy", prompt=b"hello")), ()),
    ("up", pb.ClientFrame(padding=bytes(60)), ()),
    ("up", pb.ClientFrame(draft=pb.Draft(tokens=b"ab_", given=given_bits([False, False, True]))), [(2, 83)]),
    ("down", pb.ServerFrame(verdict=pb.Verdict(tokens=b"ab")), ()),
]


@pytest.fixture
def file(tmp_path):
    ledger = Ledger(lambda token: bytes([token]), file=tmp_path / "run.ledger", key=ledger_key(tmp_path, create=True))
    for _ in range(2):
        page = ledger.page("sealed")
        for direction, message, held in FRAMES:
            page.record(direction, message, message.SerializeToString(), held)
    ledger.close()
    return tmp_path / "run.ledger"


def show(file, *arguments):
    return CliRunner().invoke(app, ["ledger", "show", str(file), *map(str, arguments)])


def test_it_shows_frames_with_their_texts_and_what_was_held_back(file):
    result = show(file, "--identity", file.parent)
    assert result.exit_code == 0
    assert result.stdout.count("→ open ") == 2
    assert "'hello'" in result.stdout
    assert "'ab_'  given: 1 of 3" in result.stdout
    assert "kept on the device at 2: 'S'" in result.stdout
    assert "← verdict" in result.stdout
    assert "empty" not in result.stdout
    assert show(file, "--identity", file.parent, "--all").stdout.count("→ empty") == 2
    assert show(file, "--key", file.parent / "ledger.key", "--generation", 2).stdout.count("open") == 1


def test_json_has_every_frame_and_its_bytes(file):
    lines = [json.loads(line) for line in show(file, "--identity", file.parent, "--json").stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["open", "empty", "draft", "verdict"] * 2
    assert lines[0]["fields"]["open"]["model"] == "toy"
    assert lines[2]["held"] == [{"position": 2, "token": 83, "text": "S"}]
    assert lines[2]["given"] == [False, False, True]


def test_a_file_that_was_cut_is_told_behind_what_is_genuine(file):
    file.write_bytes(file.read_bytes()[:-1])
    result = show(file, "--identity", file.parent)
    assert result.exit_code == 1
    assert result.stdout.count("→ open ") == 2
    assert "cut off" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"), [((), "pass --identity or --key"), (("--identity", "nowhere"), "is not there")]
)
def test_a_key_is_needed(file, arguments, message):
    result = show(file, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_key_of_another_length_is_none(file):
    result = show(file, "--key", file)
    assert result.exit_code == 1
    assert "a key has 32" in result.stderr
