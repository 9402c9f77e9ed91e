"""Findings: violations of laws, from when they were first seen until they are repaired."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from headwater.schemas.auditor import AuditorFinding, Law

#: Findings that are listed; one cause may violate a law for every delivery.
OPEN_MAX: Final = 500
#: Ended findings that are listed, and for how long.
ENDED_MAX: Final = 100
ENDED_KEPT_MS: Final = 30 * 24 * 60 * 60 * 1000


class Violation(NamedTuple):
    """A law that is violated at one position of the log, or by one row.

    Attributes:
        law: The law.
        subject: What violates it.
        detail: What was expected, and what was found.
    """

    law: Law
    subject: str
    detail: str


class Findings(msgspec.Struct):
    """Open findings, and those that ended recently.

    Attributes:
        open: By law and subject.
        ended: The oldest first.
        unlisted: Number of violations beyond the maximum.
        opened: Number of findings that ever began, by law.
    """

    open: dict[str, AuditorFinding] = {}
    ended: list[AuditorFinding] = []
    unlisted: int = 0
    opened: dict[str, int] = {}

    def update(self, violations: Iterable[Violation], now_ms: int) -> list[AuditorFinding]:
        """Begin, continue and end findings; return those that began, changed or ended.

        Args:
            violations: All laws that are violated now.
            now_ms: The time, in Unix milliseconds.
        """
        current = {finding_key(one.law, one.subject): one for one in violations}
        changed = [self._end(key, now_ms) for key in self.open.keys() - current.keys()]
        self.unlisted = 0
        for key, violation in current.items():
            before = self.open.get(key)
            if before is None and len(self.open) >= OPEN_MAX:
                self.unlisted += 1
                continue
            finding = AuditorFinding(
                law=violation.law,
                subject=violation.subject,
                detail=violation.detail,
                first_seen_ms=before.first_seen_ms if before else now_ms,
                last_seen_ms=now_ms,
            )
            self.open[key] = finding
            if before is None:
                self.opened[finding.law] = self.opened.get(finding.law, 0) + 1
            if before is None or before.detail != finding.detail:
                changed.append(finding)
        return changed

    def end_all(self, reason: str, now_ms: int) -> list[AuditorFinding]:
        """End all findings because they are not verified any more; return them.

        Args:
            reason: Why, for people.
            now_ms: The time, in Unix milliseconds.
        """
        for key, finding in self.open.items():
            detail = f"{finding.detail}; {reason}"
            self.open[key] = msgspec.structs.replace(finding, detail=detail)
        self.unlisted = 0
        return [self._end(key, now_ms) for key in [*self.open]]

    def _end(self, key: str, now_ms: int) -> AuditorFinding:
        finding = msgspec.structs.replace(self.open.pop(key), ended_ms=now_ms)
        kept = [one for one in self.ended if one.ended_ms > now_ms - ENDED_KEPT_MS]
        self.ended = [*kept, finding][-ENDED_MAX:]
        return finding

    def listed(self) -> list[AuditorFinding]:
        """Return open findings, the latest first, and then those that ended."""
        newest = sorted(self.open.values(), key=lambda one: one.first_seen_ms, reverse=True)
        return [*newest, *reversed(self.ended)]


def finding_key(law: str, subject: str) -> str:
    """Return the key of a finding."""
    return f"{law}/{subject}"
