"""Findings begin, continue and end."""

from headwater.processors.auditor.findings import OPEN_MAX, Findings, Violation
from headwater.processors.auditor.logs import Cut, LogFold, LogState
from headwater.schemas.auditor import Law

HOUR_MS = 60 * 60 * 1000


def violation(subject: str, detail: str = "expected, found") -> Violation:
    return Violation(Law.ROW_DIFFERS, subject, detail)


def test_a_finding_lasts_from_when_it_was_first_seen_until_it_is_mended():
    findings = Findings()
    (begun,) = findings.update([violation("a")], 10)
    assert (begun.first_seen_ms, begun.last_seen_ms, begun.ended_ms) == (10, 10, 0)
    assert findings.update([violation("a")], 20) == []
    assert findings.listed()[0].last_seen_ms == 20
    (changed,) = findings.update([violation("a", "found more")], 30)
    assert (changed.first_seen_ms, changed.detail) == (10, "found more")
    (ended,) = findings.update([], 40)
    assert (ended.first_seen_ms, ended.last_seen_ms, ended.ended_ms) == (10, 30, 40)
    assert findings.listed() == [ended]
    assert findings.opened == {Law.ROW_DIFFERS: 1}


def test_a_finding_that_comes_back_begins_again():
    findings = Findings()
    findings.update([violation("a")], 10)
    findings.update([], 20)
    (begun,) = findings.update([violation("a")], 30)
    assert begun.first_seen_ms == 30
    assert len(findings.listed()) == 2


def test_what_is_beyond_the_maximum_is_counted():
    findings = Findings()
    findings.update([violation(str(number)) for number in range(OPEN_MAX + 7)], 10)
    assert len(findings.open) == OPEN_MAX
    assert findings.unlisted == 7


def test_a_log_that_is_shorter_than_before_is_found_for_an_hour():
    logs = LogFold(LogState())
    assert logs.apply_ends("webhooks", (5, 7)) == []
    assert logs.apply_ends("webhooks", (6, 7)) == []
    (cut,) = logs.apply_ends("webhooks", (6, 3))
    assert cut == Cut("webhooks", 1, 3, 7)
    logs.note(cut, 1_000)
    assert [one.subject for one in logs.violations()] == ["webhooks/1"]
    logs.verified(1_000 + HOUR_MS - 1)
    assert len(list(logs.violations())) == 1
    logs.verified(1_000 + HOUR_MS)
    assert list(logs.violations()) == []
    # Its end is known, so that it may grow again.
    assert logs.apply_ends("webhooks", (6, 4)) == []


def test_a_topic_that_is_missing_is_found_if_it_had_records():
    logs = LogFold(LogState())
    logs.apply_ends("traces", (0, 2))
    assert logs.apply_missing({"traces"}) == [Cut("traces", 1, 0, 2)]
    assert logs.apply_missing({"traces"}) == []


def test_findings_end_with_a_reason_if_they_are_not_verified_any_more():
    findings = Findings()
    findings.update([Violation(Law.LOG_CUT, "webhooks/0", "a detail")], 1)
    (ended,) = findings.end_all("a reason", 2)
    assert (ended.detail, ended.ended_ms) == ("a detail; a reason", 2)
    assert findings.listed() == [ended]
