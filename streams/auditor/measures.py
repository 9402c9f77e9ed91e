"""The auditor's metrics, set from its report."""

from collections import Counter

from headwater.monitoring.catalog import (
    AUDITOR_CAUGHT_UP,
    AUDITOR_DELIVERIES,
    AUDITOR_FINDINGS,
    AUDITOR_IGNORED,
    AUDITOR_ROWS,
    AUDITOR_STEP_RESULTS,
)
from headwater.schemas.auditor import AuditorReport, Law


def measure(report: AuditorReport) -> None:
    """Set all gauges; every law has a value, also without a finding."""
    waiting, parked, lost = report.waiting, report.parked, report.lost
    # After partitions were added, one that was received before may be parked.
    settled = max(0, report.deliveries - waiting - parked - lost - report.unproven)
    states = {
        "settled": settled,
        "waiting": waiting,
        "parked": parked,
        "unproven": report.unproven,
        "lost": lost,
    }
    AUDITOR_DELIVERIES.replace({(state,): count for state, count in states.items()})
    open_by_law = Counter(finding.law for finding in report.findings if not finding.ended_ms)
    AUDITOR_FINDINGS.replace({(law.value,): open_by_law[law] for law in Law})
    AUDITOR_STEP_RESULTS.set(report.step_results)
    AUDITOR_ROWS.set(report.rows)
    AUDITOR_IGNORED.set(report.ignored_records)
    if report.caught_up:
        AUDITOR_CAUGHT_UP.set(report.at_ms / 1000)


def forget_measures() -> None:
    """Remove what another auditor measures from now on; old findings would be alerts for good."""
    AUDITOR_DELIVERIES.replace({})
    AUDITOR_FINDINGS.replace({})
