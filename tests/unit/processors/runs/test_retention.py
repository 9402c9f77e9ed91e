"""How long instances are kept: what operators write, and what it means."""

import pytest

from headwater.processors.runs.durations import KEEP_FOREVER, read_retention

DAY_MS = 86_400_000


@pytest.mark.parametrize("text", ["", " ", ","])
def test_nothing_written_keeps_all_for_ever(text: str):
    assert read_retention(text) == KEEP_FOREVER
    assert KEEP_FOREVER.until_ms("order", 5) is None


def test_each_workflow_has_its_own_time_or_that_of_all_others():
    kept = read_retention("order=90 days, audit = never , 1 day")
    assert kept.until_ms("order", 5) == 5 + 90 * DAY_MS
    assert kept.until_ms("audit", 5) is None
    assert kept.until_ms("report", 5) == 5 + DAY_MS
    assert read_retention("order=1 day").until_ms("report", 5) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "expected a duration"),
        ("order=", "expected a duration"),
        ("=1 day", "which"),
        ("an order=1 day", "expected the name of a workflow"),
        ("1 day, 2 days", "which says all others twice"),
        ("a=1 day, a=2 days", "which says a twice"),
    ],
)
def test_what_is_no_retention_is_refused_with_its_place(text: str, said: str):
    with pytest.raises(ValueError, match="separated by commas") as refused:
        read_retention(text)
    assert said in str(refused.value) or repr(text) in str(refused.value)
