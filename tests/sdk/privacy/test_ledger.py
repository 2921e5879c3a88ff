"""The ledger: what it tells of a frame, that it loses nothing, and that a file of it cannot be changed unseen."""

import errno
import io
import itertools
import json
import os
import stat
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput, LedgerError
from edgedraft.privacy.ledger import Held, Ledger, read_ledger
from edgedraft.privacy.sealed_file import KEY_BYTES, SealedFile, ledger_key, read_sealed
from edgedraft.wire import given_bits
from edgedraft.wire import verify_pb2 as pb

KEY = bytes(range(KEY_BYTES))
WORDS = {1: b"Dear ", 2: b"___ ", 3: b"Ada ", 4: b"\xc3", 5: b"\xa9"}
HEAD = len(b"edgedraft ledger 1\n") + 16

DRAFT = pb.ClientFrame(
    draft=pb.Draft(position=7, block=1, tokens=[1, 2], given=given_bits([False, True])), padding=bytes(5)
)
VERDICT = pb.ServerFrame(verdict=pb.Verdict(position=7, tokens=[1, 2, 4, 5], alternatives=[3]))


def fill(ledger, frames=((DRAFT, "up"), (VERDICT, "down")), held=()):
    page = ledger.page("sealed")
    for message, direction in frames:
        page.record(direction, message, message.SerializeToString(), held if direction == "up" else ())
    return page


def make(**settings) -> Ledger:
    ticks = itertools.count(1000)
    return Ledger(lambda token: WORDS[token], clock=lambda: float(next(ticks)), **settings)


# ---------------------------------------------------------------- what it tells


def test_an_entry_tells_what_left_and_what_did_not():
    page = fill(make(), held=[(8, 3)])
    up, down = page
    assert (up.number, up.generation, up.at, up.direction, up.mode, up.kind) == (1, 1, 1000.0, "up", "sealed", "draft")
    assert (up.position, up.tokens, up.text, up.given) == (7, (1, 2), "Dear ___ ", (False, True))
    assert up.held == (Held(8, 3, "Ada "),)
    assert up.frame == DRAFT.SerializeToString()
    assert up.size == len(up.frame)
    assert up.message == DRAFT
    assert (down.number, down.kind, down.tokens, down.text, down.held) == (2, "verdict", (1, 2, 4, 5), "Dear ___ é", ())


@pytest.mark.parametrize(
    ("message", "direction", "kind"),
    [
        (pb.ClientFrame(open=pb.Open(prompt=[1], resume_tokens=[3])), "up", "open"),
        (pb.ClientFrame(close=pb.Close()), "up", "close"),
        (pb.ClientFrame(settled=3), "up", "acknowledgement"),
        (pb.ClientFrame(padding=bytes(9)), "up", "empty"),
        (pb.ServerFrame(padding=bytes(9)), "down", "empty"),
        (pb.ServerFrame(opened=pb.Opened()), "down", "opened"),
        (pb.ServerFrame(finished=pb.Finished()), "down", "finished"),
        (pb.ServerFrame(go_away=pb.GoAway()), "down", "go_away"),
        (pb.DescribeRequest(protocol=1), "up", "describe"),
        (pb.DescribeResponse(version="1"), "down", "describe"),
    ],
)
def test_every_kind_of_frame_is_named_and_read_back(message, direction, kind):
    (entry,) = fill(make(), [(message, direction)])
    assert entry.kind == kind
    assert entry.message == message
    assert entry.text == ("Dear Ada " if kind == "open" else "")


def test_json_has_every_field_that_left():
    ledger = make()
    fill(ledger, [(pb.ClientFrame(open=pb.Open(model="m", prompt=[1]), padding=bytes(20)), "up")])
    (entry,) = json.loads(json.dumps(ledger.as_json()))
    assert entry["fields"] == {"open": {"model": "m", "prompt": [1]}}
    assert (entry["padding"], entry["text"], entry["time"]) == (20, "Dear ", "1970-01-01T00:16:40.000+00:00")


def test_generations_have_pages_of_their_own():
    ledger = make()
    first, second = fill(ledger), fill(ledger)
    assert [entry.number for entry in first] == [1, 2]
    assert [entry.number for entry in second] == [3, 4]
    assert [entry.generation for entry in ledger] == [1, 1, 2, 2]


def test_what_was_on_the_wire_is_known_by_its_place():
    page = fill(make(), [(pb.ClientFrame(draft=pb.Draft(tokens=[1, 2])), "up"), (VERDICT, "down")])
    assert page.was_on_wire([])
    assert page.was_on_wire([1, 2])
    assert not page.was_on_wire([2, 1])
    assert not page.was_on_wire([1, 2, 3])


# ---------------------------------------------------------------- nothing is lost


@pytest.mark.parametrize("memory_bytes", [0, 1500, 4000, 10**9])
@pytest.mark.parametrize("named", [False, True])
def test_no_entry_is_lost_whatever_memory_there_is(tmp_path, memory_bytes, named):
    where = {"file": tmp_path / "ledger", "key": KEY} if named else {}
    ledger = make(memory_bytes=memory_bytes, **where)
    kept = make()
    for _ in range(6):
        fill(ledger, held=[(8, 3)])
        fill(kept, held=[(8, 3)])
    assert ledger.entries() == kept.entries()
    ledger.close()
    ledger.close()
    assert ledger.entries() == kept.entries()
    if named:
        assert list(read_ledger(tmp_path / "ledger", KEY)) == kept.entries()
        assert stat.S_IMODE((tmp_path / "ledger").stat().st_mode) == 0o600
    with pytest.raises(LedgerError, match="is closed"):
        fill(ledger)


def test_a_file_holds_no_text_in_clear(tmp_path):
    ledger = make(file=tmp_path / "ledger", key=KEY)
    fill(ledger, held=[(8, 3)])
    ledger.close()
    data = (tmp_path / "ledger").read_bytes()
    assert b"Ada" not in data
    assert b"Dear" not in data


class Full(io.BytesIO):
    """A disk that takes so many writes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data) -> int:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_ledger_that_cannot_be_written_says_so_and_takes_nothing_more():
    with pytest.raises(LedgerError, match=r"cannot be written \(No space"):
        SealedFile(Full(0), KEY)
    disk = Full(2)
    file = SealedFile(disk, KEY)
    file.write(b"one")
    with pytest.raises(LedgerError, match="No space"):
        file.write(b"two")
    disk.room = 9
    with pytest.raises(LedgerError, match="could not be before"):
        file.write(b"three")
    assert file.read() == [b"one"]


def test_wrong_settings_are_named(tmp_path):
    make(file=tmp_path / "ledger", key=KEY).close()
    for settings, field in (
        ({"file": tmp_path / "ledger", "key": KEY}, "ledger"),
        ({"file": tmp_path / "other"}, "ledger_key"),
        ({"file": tmp_path / "other", "key": b"short"}, "ledger_key"),
        ({"memory_bytes": -1}, "memory_bytes"),
    ):
        with pytest.raises(InvalidInput) as caught:
            make(**settings)
        assert caught.value.field == field
    with pytest.raises(LedgerError, match="cannot be made"):
        make(file=tmp_path / "nowhere" / "ledger", key=KEY)


# ---------------------------------------------------------------- a file is whole, or it shows


def sealed(path, contents, *, end=True) -> bytes:
    path.unlink(missing_ok=True)
    file = SealedFile.create(path, KEY)
    for content in contents:
        file.write(content)
    if end:
        file.end()
    return path.read_bytes()


def records(data: bytes) -> list[bytes]:
    """Its parts: what is before the records, and each record."""
    parts, place = [data[:HEAD]], HEAD
    while place < len(data):
        length = 4 + struct.unpack_from(">I", data, place)[0]
        parts.append(data[place : place + length])
        place += length
    return parts


CONTENTS = [b"one", b"two", b"three"]


@given(st.data())
def test_a_changed_byte_is_noticed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "file"
    whole = bytearray(sealed(path, CONTENTS))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(LedgerError):
        list(read_sealed(path, KEY))


@given(st.data())
def test_a_cut_is_noticed_wherever_it_is(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "file"
    whole = sealed(path, CONTENTS)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(LedgerError):
        list(read_sealed(path, KEY))


@pytest.mark.parametrize(
    "order", [[2, 1, 3, 4], [1, 3, 4], [1, 1, 2, 3, 4], [1, 2, 4, 3], [4], [1, 2, 3, 4, 4], [2, 3, 4]]
)
def test_records_out_of_their_places_are_noticed(tmp_path, order):
    head, *parts = records(sealed(tmp_path / "file", CONTENTS))
    (tmp_path / "file").write_bytes(head + b"".join(parts[number - 1] for number in order))
    with pytest.raises(LedgerError):
        list(read_sealed(tmp_path / "file", KEY))


def test_records_of_another_file_with_the_same_key_are_noticed(tmp_path):
    head, *parts = records(sealed(tmp_path / "file", CONTENTS))
    _, *others = records(sealed(tmp_path / "other", CONTENTS))
    (tmp_path / "file").write_bytes(b"".join((head, parts[0], others[1], *parts[2:])))
    with pytest.raises(LedgerError, match="record 2 "):
        list(read_sealed(tmp_path / "file", KEY))


def test_what_comes_before_the_damage_is_read(tmp_path):
    sealed(tmp_path / "file", CONTENTS, end=False)
    reading = read_sealed(tmp_path / "file", KEY)
    assert [next(reading) for _ in CONTENTS] == CONTENTS
    with pytest.raises(LedgerError, match="no end behind record 3"):
        next(reading)


def test_another_key_and_another_file_are_told(tmp_path):
    sealed(tmp_path / "file", CONTENTS)
    with pytest.raises(LedgerError, match="the key is another"):
        list(read_sealed(tmp_path / "file", bytes(KEY_BYTES)))
    (tmp_path / "file").write_text("hello")
    with pytest.raises(LedgerError, match="is no ledger"):
        list(read_sealed(tmp_path / "file", KEY))
    with pytest.raises(LedgerError, match="cannot be read"):
        list(read_sealed(tmp_path / "nothing", KEY))


def test_the_same_content_never_looks_the_same(tmp_path):
    assert len({sealed(tmp_path / "file", CONTENTS)[HEAD:] for _ in range(3)}) == 3
    assert len(set(records(sealed(tmp_path / "file", [b"same"] * 5)))) == 7


# ---------------------------------------------------------------- the key


def test_the_key_is_made_once_and_for_this_user_alone(tmp_path):
    with pytest.raises(LedgerError, match="is not there"):
        ledger_key(tmp_path)
    key = ledger_key(tmp_path, create=True)
    assert len(key) == KEY_BYTES
    assert key == ledger_key(tmp_path) == ledger_key(tmp_path, create=True)
    assert stat.S_IMODE((tmp_path / "ledger.key").stat().st_mode) == 0o600


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path):
    ledger_key(tmp_path, create=True)
    os.chmod(tmp_path / "ledger.key", 0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        ledger_key(tmp_path)
    os.chmod(tmp_path / "ledger.key", 0o600)
    (tmp_path / "ledger.key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="has 5 bytes"):
        ledger_key(tmp_path)
