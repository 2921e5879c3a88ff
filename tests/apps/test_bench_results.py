"""Results of benchmarks: goals, the JSON's form, the table, and what they are made from."""

import io
import json
import os

import pytest
from rich.console import Console

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.crowd import Pace, jain_index, percentile
from edgedraft_apps.bench.load import LoadSettings, make_identities
from edgedraft_apps.bench.machine import ProcessUse, describe_machine, machine
from edgedraft_apps.bench.prompts import BenchPrompt, load_prompts
from edgedraft_apps.bench.results import Result, Row, commit
from edgedraft_cloud.authority import DevelopmentAuthority

ROWS = [
    Row.at_least("speed", "1 session", 1.9, 1.8, "x"),
    Row.at_most("cost", "256 sessions", 0.7, 0.5, "ms"),
    Row.exactly("errors", "all", 0, 0),
    Row("plain", "all", 3.0),
]


def test_a_row_knows_whether_its_goal_is_reached():
    assert [row.ok for row in ROWS] == [True, False, True, None]
    assert [row.bound for row in ROWS] == [">=", "<=", "==", ""]
    assert Result("suite", ROWS).missed == 1


def test_the_json_has_its_form(tmp_path):
    Result("suite", ROWS).save(tmp_path / "deep" / "result.json")
    data = json.loads((tmp_path / "deep" / "result.json").read_text(encoding="utf-8"))
    assert list(data) == ["suite", "commit", "machine", "rows"]
    assert data["commit"] == commit()
    assert set(data["rows"][0]) == {"metric", "case", "value", "unit", "bound", "goal", "ok"}
    assert {"cpu", "cores", "ram_gib", "gpu", "python", "libraries"} <= set(data["machine"])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["result.json"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="json"):
        Result("suite", ROWS).save(tmp_path / "file" / "result.json")


def test_the_table_shows_value_goal_and_mark():
    console = Console(width=100, record=True, file=io.StringIO())
    Result("suite", ROWS).show(console)
    lines = console.export_text().splitlines()
    assert any("speed" in line and "1.9 x" in line and ">= 1.8" in line and "ok" in line for line in lines)
    assert any("cost" in line and "missed" in line for line in lines)


def test_the_machine_in_one_line():
    assert f"{machine()['cores']} cores" in describe_machine()


def test_what_a_process_uses():
    before = ProcessUse.of(os.getpid())
    assert before.rss > 2**20
    sum(range(2_000_000))
    assert ProcessUse.of(os.getpid()).cpu_seconds >= before.cpu_seconds > 0
    with pytest.raises(InvalidInput, match="cannot be looked at"):
        ProcessUse.of(2**22 + 1)


@pytest.mark.parametrize(("amounts", "index"), [([1, 1, 1], 1.0), ([3, 0, 0], 1 / 3), ([], 1.0), ([0, 0], 1.0)])
def test_the_jain_index(amounts, index):
    assert jain_index(amounts) == pytest.approx(index)


def test_percentiles():
    assert percentile(range(100), 0.5) == 50
    assert percentile([5, 1, 3], 0.99) == 5
    assert percentile([], 0.5) == 0


def test_prompts_are_read_in_every_form(tmp_path):
    file = tmp_path / "prompts"
    file.write_text('{"prompt": "a", "category": "x"}\n\n{"text": "b"}\n{"turns": ["c", "d"]}\n', encoding="utf-8")
    assert load_prompts(file) == [BenchPrompt("a", "x"), BenchPrompt("b"), BenchPrompt("c")]
    assert load_prompts(file, 2) == [BenchPrompt("a", "x"), BenchPrompt("b")]
    file.write_text("first\nsecond\n", encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(file, 9)] == ["first", "second"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"prompt": "a"}\nnonsense', "line 2 is no JSON"),
        ('{"other": "a"}', "line 1 has no text"),
        ('{"turns": []}', "line 1 has no text"),
        ('{"prompt": ""}', "line 1 has no text"),
        ("{1}", "line 1 is no JSON"),
    ],
)
def test_wrong_prompts_are_refused_with_the_line(tmp_path, text, message):
    (tmp_path / "prompts").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=message):
        load_prompts(tmp_path / "prompts")


def test_a_missing_file_and_a_limit_of_none_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_prompts(tmp_path / "none")
    (tmp_path / "prompts").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="limit"):
        load_prompts(tmp_path / "prompts", 0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LoadSettings("localhost:1", 0, 1), "sessions"),
        (lambda: LoadSettings("localhost:1", 1, 0), "seconds"),
        (lambda: LoadSettings("localhost:1", 1, 1, warm_up=-1), "warm_up"),
        (lambda: Pace(draft_seconds=-1), "draft_ms"),
        (lambda: Pace(max_tokens=0), "max_tokens"),
        (lambda: Pace(block_size=0), "block_size"),
    ],
)
def test_settings_out_of_range_are_refused(make, field):
    with pytest.raises(InvalidInput, match=field):
        make()


def test_devices_of_tenants_get_certificates(tmp_path):
    with pytest.raises(InvalidInput, match="ca"):
        make_identities(tmp_path, 1, 1)
    DevelopmentAuthority(tmp_path)
    identities = make_identities(tmp_path, 2, 3)
    assert [[each.tenant for each in devices] for devices in identities] == [["tenant-1"] * 3, ["tenant-2"] * 3]
    assert len({each.device for each in identities[0]}) == 3
    with pytest.raises(InvalidInput, match="tenants"):
        make_identities(tmp_path, 0, 1)
