"""The labelled set of the detectors' benchmark, how it is counted, and its goals."""

from edgedraft.privacy.detect import Detectors, Finding
from edgedraft_apps.bench.privacy.detectors import detector_rows, is_found, is_right, load_cases


def test_the_labelled_set_is_as_large_and_varied_as_promised():
    cases = load_cases()
    spans = [span for case in cases for span in case.spans]
    assert len(spans) >= 300
    assert len({span.kind for span in spans}) >= 12
    assert len({case.language for case in cases}) >= 12
    assert sum(not case.spans for case in cases) >= 100
    assert len(load_cases("held out")) == len(cases) // 3
    assert len(load_cases("tuning")) + len(load_cases("held out")) == len(cases)


def test_a_span_counts_when_covered_and_a_finding_when_half_right():
    text = "Ann Lee (x)"
    span = Finding(0, 7, "PERSON")
    assert is_found(text, span, [Finding(0, 3, "PERSON"), Finding(4, 8, "PERSON")])
    assert not is_found(text, span, [Finding(0, 6, "PERSON")])
    assert not is_found(text, span, [Finding(0, 7, "EMAIL")])
    assert is_right(text, Finding(4, 11, "PERSON"), [span])
    assert not is_right(text, Finding(6, 11, "PERSON"), [Finding(7, 8, "PERSON")])
    assert not is_right(text, Finding(0, 7, "EMAIL"), [span])


def test_the_goals_are_reached():
    rows = detector_rows()
    assert {row.goal for row in rows} == {None, 0.95, 0.9}
    assert [(row.metric, row.case, row.value) for row in rows if row.ok is False] == []


def test_detectors_that_find_nothing_or_all_miss_a_goal():
    for detector, missed in (
        (lambda text: [], "detector recall"),
        (lambda text: [(0, len(text))], "detector precision"),
    ):
        rows = detector_rows(Detectors([("EMAIL", detector)]))
        assert missed in {row.metric for row in rows if row.ok is False}
