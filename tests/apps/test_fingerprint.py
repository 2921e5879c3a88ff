"""Fingerprinting: the observer sees lengths and times of records, and the classifier tells what can be told."""

import asyncio
import contextlib
import random
import sys

import numpy as np
import pytest

from edgedraft.errors import InvalidInput
from edgedraft.privacy.shaping import Shaping
from edgedraft_apps.bench.privacy import fingerprint
from edgedraft_apps.bench.privacy.fingerprint import Case, accuracy, course_of, fingerprint_rows, sizes_of
from edgedraft_apps.bench.privacy.observer import Observer
from edgedraft_apps.bench.suite import Suite
from edgedraft_cloud.engines.trace_file import Trace, TraceHeader

HEADER = TraceHeader("big", "aa", "small", "bb", "cc", 100, 128, (2,), 40, "a machine")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(fingerprint, "_TREES", 30)


def record(length: int) -> bytes:
    """A TLS record with so many bytes in it."""
    return b"\x17\x03\x03" + length.to_bytes(2) + bytes(length)


async def test_an_observer_sees_the_lengths_of_records_however_they_are_cut():
    async def answer(reader, writer):
        await reader.readexactly(5 + 300 + 5 + 1)
        writer.write(record(77) + record(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Observer("127.0.0.1", port) as observer:
        reader, writer = await asyncio.open_connection("127.0.0.1", observer.port)
        data = record(300) + record(1)
        for start, end in ((0, 3), (3, 200), (200, len(data))):
            writer.write(data[start:end])
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.read() == record(77) + record(0)
        writer.close()
    server.close()
    assert [size for _, size in observer.seen] == [305, 6, -82, -5]
    times = [at for at, _ in observer.seen]
    assert times == sorted(times)


async def test_an_observer_passes_on_that_the_verifier_is_not_there():
    async with Observer("127.0.0.1", 1) as observer:
        reader, writer = await asyncio.open_connection("127.0.0.1", observer.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


def sightings(prompts: int, runs: int, *, size, gap) -> tuple[list, list]:
    draws = random.Random(0)
    seen, labels = [], []
    for prompt in range(prompts):
        for _ in range(runs):
            at, records = 0.0, []
            for _ in range(30):
                at += gap(prompt) + draws.uniform(0, 0.01)
                records.append((at, size(prompt) * draws.choice((1, -1))))
            seen.append(records)
            labels.append(prompt)
    return seen, labels


def test_lengths_and_times_tell_prompts_apart_and_equal_ones_do_not():
    assert accuracy(*sightings(4, 10, size=lambda prompt: 60 + prompt, gap=lambda _: 0.1)) > 0.9
    assert accuracy(*sightings(4, 10, size=lambda _: 64, gap=lambda prompt: 0.1 + 0.1 * prompt)) > 0.9
    assert accuracy(*sightings(4, 10, size=lambda _: 64, gap=lambda _: 0.1)) < 0.6


@pytest.mark.parametrize("records", [1, 2, 500])
def test_features_are_as_many_for_each_run(records):
    seen = [(0.01 * number, 64 if number % 2 else -9000) for number in range(records)]
    usual = [(0.1, 64), (0.2, -64), (0.3, 70)]
    for look in (sizes_of, course_of):
        assert look(seen).shape == look(usual).shape
        assert np.isfinite(look(seen)).all()


def test_a_missing_classifier_is_told_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(InvalidInput, match=r"pip install 'edgedraft\[bench\]'"):
        accuracy([[(0.0, 1)]], [0])


async def test_real_runs_are_guessed_by_what_passes(tmp_path, monkeypatch):
    """Two prompts of very different lengths: without shaping all are told apart."""
    monkeypatch.setattr(fingerprint, "_QUICK", (2, 5))
    traces = [
        Trace(tuple(range(3, 3 + length)), tuple(range(3, 3 + answer)), ((3,),) * answer, ((0.5,),) * answer, "")
        for length, answer in ((5, 4), (60, 30))
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(each.as_json() + "\n" for each in (HEADER, *traces)))
    suite = Suite(tmp_path, quick=True, progress=lambda *_: None)
    rows = await fingerprint_rows(suite, file, [Case("plain", Shaping(sizes=()), 2)])
    found = {row.metric: row for row in rows}
    assert found["prompts told by sizes and times"].value == 100
    assert found["prompts told by sizes and times"].ok is False
    assert found["guessing"].value == 50
    assert found["bytes on the line"].value > 1000
    monkeypatch.setattr(fingerprint, "_QUICK", (3, 5))
    with pytest.raises(InvalidInput, match="record 3"):
        await fingerprint_rows(suite, file)
