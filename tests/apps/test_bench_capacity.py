"""Clients within a time between tokens: interpolated, never beyond what was measured."""

from pathlib import Path

import pytest

from edgedraft.errors import InvalidInput
from edgedraft_apps.bench.capacity import CapacitySettings, clients_within

# 1 client: 100 ms a token, 2: 200 ms, 4: 250 ms.
RATES = {1: 10.0, 2: 10.0, 4: 16.0}


@pytest.mark.parametrize(
    ("seconds", "clients"), [(0.05, 0), (0.1, 1), (0.15, 1.5), (0.2, 2), (0.225, 3), (0.25, 4), (9.0, 4)]
)
def test_clients_are_interpolated_between_what_was_measured(seconds, clients):
    assert clients_within(RATES, seconds) == pytest.approx(clients)


def test_where_more_clients_are_faster_each_the_most_count():
    assert clients_within({1: 1.0, 2: 4.0, 4: 4.0}, 0.6) == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gamma": 0}, "gamma"),
        ({"tokens": 1}, "tokens"),
        ({"clients": (2, 1)}, "clients"),
        ({"clients": ()}, "clients"),
    ],
)
def test_settings_out_of_range_are_refused(change, field):
    settings = {"tokens": 8, "draft_seconds": 0.01, "gamma": 4, "clients": (1, 2)} | change
    with pytest.raises(InvalidInput, match=field):
        CapacitySettings(target=Path(), beside=Path(), drafter=Path(), prompts=(), **settings)
