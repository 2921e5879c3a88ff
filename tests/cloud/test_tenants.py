"""The tenants' file says who is served, its mistakes are shown by line, and the bucket keeps its rate."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedraft.errors import InvalidInput
from edgedraft_cloud.tenants import Tenant, Tenants, TokenBucket

GOOD = """\
[default]
max_sessions = 4

[tenants.acme]
weight = 3
tokens_per_minute = 60_000

[tenants."b.example"]
tokens_per_minute = 600
burst = 10
"""


@pytest.fixture
def load(tmp_path):
    def load(text: str | bytes) -> Tenants:
        file = tmp_path / "tenants.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Tenants.load(file)

    return load


def test_a_named_tenant_stands_for_itself_and_the_rest_get_the_default(load):
    tenants = load(GOOD)
    assert tenants.get("acme") == Tenant("acme", weight=3, tokens_per_minute=60_000)
    assert tenants.get("b.example") == Tenant("b.example", tokens_per_minute=600, burst=10)
    assert tenants.get("somebody") == Tenant("somebody", max_sessions=4)


def test_without_a_default_only_the_named_are_served(load):
    tenants = load("[tenants.acme]\n")
    assert tenants.get("acme") == Tenant("acme")
    assert tenants.get("default") is None
    assert tenants.get("Acme") is None


def test_a_tenant_may_be_called_default(load):
    tenants = load("[tenants.default]\nweight = 2\n")
    assert tenants.get("default") == Tenant("default", weight=2)
    assert tenants.get("somebody") is None


def test_without_a_file_everybody_is_served():
    assert Tenants.anyone().get("acme") == Tenant("acme")


MISTAKES = {
    "syntax": ("[default]\nweight = 1\nmax_sessions = \n", 3, "Invalid value"),
    "unclosed": ("[default]\nmax_sessions = 3\n[tenants.acme\n", 3, "Expected ']'"),
    "unclosed at the end": ('[default]\n\nweight = """\nx\n', 4, "Unterminated string"),
    "table twice": ("[tenants.a]\n[tenants.b]\n[tenants.a]\n", 3, "twice"),
    "key twice": ("[default]\nweight = 1\nweight = 1\n", 3, "overwrite"),
    "no TOML number": (f"[default]\n\nmax_sessions = {'9' * 5000}\nweight = 1\n", 3, "digits"),
    "nested without end": (f"[default]\n\nweight = {'[' * 5000}\n", 3, "recursion"),
    "no UTF-8": (b"[default]\n# \xff\n", 2, "UTF-8"),
    "empty": ("", 1, "no tenant"),
    "comment only": ("# nothing\n", 1, "no tenant"),
    "nobody": ("[tenants]\n", 1, "no tenant"),
    "unknown table": ("[default]\n\n[tenant.acme]\nweight = 1\n", 3, "'tenant' is unknown"),
    "unknown key": ("[tenants.acme]\nweight = 1\n\nwieght = 2\n", 4, "'wieght' is unknown"),
    "name as key": ("[tenants.acme]\nname = 'b'\n", 2, "'name' is unknown"),
    "value for a table": ("[tenants]\nacme = 5\n", 2, "tenants.acme is 5"),
    "array of tables": ("[default]\n[[tenants.acme]]\n", 2, "tenants.acme is [{}]"),
    "default is no table": ("default = 1\n", 1, "default is 1"),
    "negative": ("[tenants.a]\nweight = 2\n\n[tenants.b]\nweight = 2\n\nmax_sessions = -1\n", 7, "max_sessions is -1"),
    "negative weight": (
        "[tenants.acme]\nmax_sessions = 2\ntokens_per_minute = 3\n\n\n\nweight = -1\n",
        7,
        "weight is -1",
    ),
    "zero weight": ("[default]\nweight = 0\n", 2, "weight is 0"),
    "nan": ("[default]\nweight = nan\n", 2, "weight is nan"),
    "infinite": ("[default]\nweight = inf\n", 2, "weight is inf"),
    "text": ("[default]\nweight = 'much'\n", 2, "weight is 'much'"),
    "true": ("[default]\nmax_sessions = true\n", 2, "max_sessions is True"),
    "fraction": ("[default]\ntokens_per_minute = 1.5\n", 2, "tokens_per_minute is 1.5"),
    "burst alone": ("[default]\nweight = 1\nburst = 5\n", 3, "burst stands without tokens_per_minute"),
    "value over lines": ("[default]\nweight = [\n  1,\n  2,\n]\nmax_sessions = 1\n", 5, "weight is [1, 2]"),
    "no name of a certificate": ("[tenants.a]\n[tenants.'b c']\n", 2, "'b c'"),
    "name with a path": ("[tenants.a]\n\n[tenants.'a/device/b']\n", 3, "'a/device/b'"),
    "empty name": ("[tenants.a]\n[tenants.'']\n", 2, "''"),
    "dotted name": ("[tenants.a.b]\nweight = 1\n", 1, "'b' is unknown"),
    "inline": ("tenants = { a = { weight = 1 }, b = { weight = 0 } }\n", 1, "weight is 0"),
}


@pytest.mark.parametrize(("text", "line", "problem"), MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("windows", [False, True], ids=["LF", "CRLF"])
def test_a_mistake_is_named_with_its_line(load, text, line, problem, windows):
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(InvalidInput) as caught:
        load(data.replace(b"\n", b"\r\n") if windows else data)
    assert caught.value.field == "tenants"
    assert f"tenants.toml, line {line}: " in caught.value.problem
    assert problem in caught.value.problem
    assert caught.value.cure
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for file in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(InvalidInput, match=f"tenants: {file} cannot be read"):
            Tenants.load(file)


limits = st.fixed_dictionaries(
    {},
    optional={
        "weight": st.floats(0.001, 1000),
        "max_sessions": st.integers(1, 10**6),
        "tokens_per_minute": st.integers(1, 10**12),
    },
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)


@given(tables=st.dictionaries(names, limits, min_size=1, max_size=5), data=st.data())
def test_what_is_written_is_read_and_one_wrong_value_is_found(tmp_path_factory, tables, data):
    lines = []
    for name, table in tables.items():
        lines += [f"[tenants.'{name}']", *(f"{key} = {value!r}" for key, value in table.items()), ""]
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text("\n".join(lines))
    tenants = Tenants.load(file)
    assert {name: tenants.get(name) for name in tables} == {
        name: Tenant(name, **table) for name, table in tables.items()
    }

    values = [index for index, line in enumerate(lines) if "=" in line]
    if values:
        index = data.draw(st.sampled_from(values))
        lines[index] = lines[index].partition("=")[0] + "= -7"
        file.write_text("\n".join(lines))
        with pytest.raises(InvalidInput, match=f"line {index + 1}: [a-z_]+ is -7"):
            Tenants.load(file)


@pytest.mark.parametrize(
    ("tenant", "burst"),
    [
        (Tenant("a", tokens_per_minute=60), 256),
        (Tenant("a", tokens_per_minute=60_000), 15_000),
        (Tenant("a", tokens_per_minute=60_000, burst=7), 7),
    ],
)
def test_the_burst_is_a_quarter_of_a_minute_unless_it_is_set(tenant, burst):
    bucket = tenant.bucket()
    bucket.take(burst, 0)
    assert bucket.wait(0) == 0
    bucket.take(1, 0)
    assert bucket.wait(0) == pytest.approx(60 / tenant.tokens_per_minute)


def test_a_tenant_without_a_limit_has_no_bucket():
    assert Tenant("a").bucket() is None


def test_an_overdrawn_bucket_says_how_long_to_wait():
    bucket = TokenBucket(10, 100)
    bucket.take(150, now=5)
    assert bucket.wait(5) == pytest.approx(5)
    assert bucket.wait(8) == pytest.approx(2)
    assert bucket.wait(10) == 0


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf])
def test_a_bucket_has_a_rate_and_a_size(bad):
    with pytest.raises(InvalidInput, match="rate_per_second"):
        TokenBucket(bad, 1)
    with pytest.raises(InvalidInput, match="burst"):
        TokenBucket(1, bad)


def test_nothing_can_be_put_back():
    with pytest.raises(InvalidInput, match="tokens"):
        TokenBucket(1, 1).take(-1, 0)


rates = st.floats(0.1, 1e6)
bursts = st.floats(1, 1e6)
flow = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 500)), max_size=40)


@given(rate=rates, burst=bursts, flow=flow)
def test_whoever_waits_gets_no_more_than_burst_and_rate_in_any_span(rate, burst, flow):
    bucket, now, taken = TokenBucket(rate, burst), 0.0, []
    for pause, tokens in flow:
        now += pause
        now += bucket.wait(now)
        bucket.take(tokens, now)
        taken.append((now, tokens))
    for first in range(len(taken)):
        total = 0
        for last in range(first, len(taken)):
            total += taken[last][1]
            span = taken[last][0] - taken[first][0]
            # The last one may overdraw: it is known only afterwards.
            assert total - taken[last][1] <= (burst + rate * span) * (1 + 1e-9) + 1e-6


@given(rate=rates, burst=bursts, flow=flow)
def test_it_agrees_with_a_bucket_that_is_filled_drop_by_drop(rate, burst, flow):
    bucket, level, now = TokenBucket(rate, burst), burst, 0.0
    for pause, tokens in flow:
        now += pause
        level = min(burst, level + rate * pause)
        bucket.take(tokens, now)
        level -= tokens
        assert bucket.wait(now) == pytest.approx(max(0.0, -level) / rate, abs=1e-6 + burst / rate * 1e-9)


@given(rate=rates, burst=bursts, pause=st.floats(0, 1000))
def test_after_the_wait_there_is_no_wait_and_it_shrinks_with_time(rate, burst, pause):
    bucket = TokenBucket(rate, burst)
    bucket.take(round(burst) + 500, 0.0)
    wait = bucket.wait(0.0)
    assert wait > 0
    assert bucket.wait(pause) == pytest.approx(max(0.0, wait - pause), abs=1e-6)
    assert bucket.wait(wait) <= 1e-6
