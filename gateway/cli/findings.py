"""Findings of `headwater doctor`: pure functions over what was collected elsewhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final, Literal, NamedTuple

from headwater.gateway.cli.output import counted
from headwater.schemas.deployments import DeploymentCreated

State = Literal["ok", "warning", "problem", "unknown"]

#: Signatures are valid for five minutes; a smaller clock error refuses no delivery.
CLOCK_OFFSET_MAX_S: Final = 60
CERTIFICATE_EXPIRES_SOON: Final = timedelta(days=21)
#: A program that runs once a quarter still uses its key.
KEY_UNUSED_MAX: Final = timedelta(days=90)
#: Names in a finding.
_SHOWN: Final = 5
DISK_FREE_MIN: Final = 2 * 1024**3
DISK_FREE_SHARE: Final = 0.10
#: Scheduled projections are compared with Kafka every night.
VERIFICATION_AGE_MAX: Final = timedelta(days=3)
#: The auditor reports every two minutes at rest.
AUDITOR_REPORT_AGE_MAX: Final = timedelta(minutes=15)
#: Records that a consumer may lag behind temporarily.
LAG_MAX: Final = 10_000
#: Consumer groups that a deployment needs, by the first word of their members' names.
REQUIRED_MEMBERS: Final = ("pipeline", "projector")


class Finding(NamedTuple):
    """Result of one check: what was found, and the next command, if any."""

    check: str
    state: State
    found: str
    next: str = ""


def is_well(findings: Sequence[Finding]) -> bool:
    """Return whether no finding needs a repair."""
    return all(finding.state in ("ok", "warning") for finding in findings)


# --- the system


def parts(names: Sequence[str]) -> Finding:
    """Check that members of all consumer groups are running."""
    missing = [
        member
        for member in REQUIRED_MEMBERS
        if not any(name.split()[0] == member for name in names)
    ]
    members = ", ".join(names) or "none"
    if missing:
        start = {"pipeline": "headwater worker", "projector": "headwater project"}
        commands = "; ".join(start[member] for member in missing)
        return Finding("parts", "problem", f"{members}; missing: {', '.join(missing)}", commands)
    return Finding("parts", "ok", members)


def versions(release: str, gateway_release: str, older: Mapping[str, Sequence[str]]) -> Finding:
    """Check that all processes are of one release, judged by the schemas that they read."""
    differing = [f"{name} cannot read {', '.join(schemas)}" for name, schemas in older.items()]
    if gateway_release != release:
        differing.append(f"the gateway is {gateway_release}")
    if differing:
        return Finding(
            "versions", "warning", f"this is {release}; {'; '.join(differing)}", "restart them"
        )
    return Finding("versions", "ok", f"all {release}")


def migrations(missing: Sequence[str]) -> Finding:
    """Check that all migrations of this release are applied."""
    if missing:
        return Finding(
            "migrations", "problem", f"missing: {', '.join(missing)}", "headwater migrate"
        )
    return Finding("migrations", "ok", "all applied")


def topics(differences: Sequence[Any]) -> Finding:
    """Check that topics are as the catalogue defines them."""
    if not differences:
        return Finding("topics", "ok", "as the catalogue has them")
    state: State = (
        "problem" if any(difference.loses_data for difference in differences) else "warning"
    )
    summary = "; ".join(difference.line() for difference in differences[:3])
    more = f"; {len(differences) - 3} more" if len(differences) > 3 else ""
    return Finding("topics", state, summary + more, "headwater topics check")


def lag(behind: Mapping[str, int]) -> Finding:
    """Check how far consumers lag behind."""
    summary = ", ".join(f"{name} {number:,}" for name, number in sorted(behind.items())) or "none"
    slow = [name for name, number in behind.items() if number > LAG_MAX]
    if slow:
        advice = "see whether it falls: run this again; if not, look at the log of that process"
        return Finding("lag", "warning", summary, advice)
    return Finding("lag", "ok", f"records behind: {summary}")


def deployment(active: DeploymentCreated | None, problem: str) -> Finding:
    """Check the active deployment, and that workers can read it."""
    if active is None:
        none_active = "none is active: runs are of the apps that workers are started with"
        return Finding("deployment", "ok", none_active)
    if problem:
        return Finding("deployment", "problem", problem, "headwater deployments rollback")
    names = ", ".join(workflow.name for workflow in active.workflows)
    return Finding("deployment", "ok", f"{active.id} of {active.app}: {names}")


def refused_records(number: int | None) -> Finding:
    """Check for records that the projector could not apply; None if the gateway is unreachable."""
    if number is None:
        return Finding("projector's errors", "unknown", "the gateway did not answer")
    if number:
        return Finding(
            "projector's errors",
            "problem",
            f"{counted(number, 'record')} not applied",
            "select * from projection_errors; and report it: these are bugs",
        )
    return Finding("projector's errors", "ok", "none")


def audited(report: Mapping[str, Any] | None, now: datetime) -> Finding:
    """Check the auditor's report; None if there is none."""
    command = "headwater auditor status"
    if report is None:
        return Finding("auditor", "warning", "it has never run", "headwater auditor")
    laws = sorted({one["law"] for one in report["findings"] if one["ended"] is None})
    if laws:
        return Finding("auditor", "problem", f"violated: {', '.join(laws)}", command)
    verified = f"{report['lost']} lost of {counted(report['deliveries'], 'delivery', 'deliveries')}"
    age = now - datetime.fromisoformat(report["at"])
    if age > AUDITOR_REPORT_AGE_MAX:
        minutes = round(age.total_seconds() / 60)
        return Finding("auditor", "warning", f"{verified}, {minutes} minutes ago", command)
    return Finding("auditor", "ok", verified)


def verification(
    rebuilds: Sequence[Mapping[str, Any]], now: datetime, scheduled: Sequence[str]
) -> Finding:
    """Check the latest comparisons of projections with Kafka.

    Args:
        rebuilds: Rebuilds and verifications, newest first.
        now: The time.
        scheduled: The projections that are compared every night; only these have to be recent.
    """
    check, command = "rows", "headwater rebuild --verify"
    latest = _latest(rebuilds)
    verified = [row for row in latest.values() if row["state"] == "verified"]
    failed = [row for row in latest.values() if row["state"] == "failed"]
    if not verified and not failed:
        return Finding(check, "ok", "not compared with Kafka yet", command)
    never = [name for name in scheduled if name not in latest]
    uncompared = [f"never compared: {', '.join(never)}"] if never else []
    differing = [row for row in verified if any(_differences(row))]
    if problems := [*differing, *failed]:
        name = problems[0]["projection"]
        repair = f"headwater rebuild {name}, then headwater rebuild --switch with its id"
        summaries = [*map(_differing, differing), *map(_failed, failed), *uncompared]
        remedy = repair if differing else f"{command} {name}"
        return Finding(check, "problem", "; ".join(summaries), remedy)
    times = {row["projection"]: datetime.fromisoformat(row["created_at"]) for row in verified}
    late = [n for n in scheduled if n in times and now - times[n] > VERIFICATION_AGE_MAX]
    equal = counted(len(verified), "projection")
    summaries = [f"{equal} equal to Kafka at {min(times.values()):%Y-%m-%d %H:%M} or later"]
    if late:
        summaries.append(f"not compared for {VERIFICATION_AGE_MAX.days} days: {', '.join(late)}")
    summaries += uncompared
    behind = [*late, *never]
    if not behind:
        return Finding(check, "ok", "; ".join(summaries))
    command += f" {behind[0]}" if len(behind) == 1 else ""
    return Finding(check, "warning", "; ".join(summaries), command)


def _latest(rebuilds: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the latest comparison or switch of each projection."""
    latest: dict[str, Mapping[str, Any]] = {}
    for row in rebuilds:
        # A rebuild that failed has a version; it says nothing about the rows in use.
        is_failed = row["state"] == "failed" and row["version"] is None
        if is_failed or row["state"] in ("verified", "switched"):
            latest.setdefault(row["projection"], row)
    return latest


def _failed(row: Mapping[str, Any]) -> str:
    error = row["error"] or "no reason given"
    at = row["created_at"][:16]
    return f"{row['projection']} could not be compared with Kafka at {at}: {error}"


def _differences(row: Mapping[str, Any]) -> tuple[int, int, int]:
    difference = row["difference"]
    return difference["added"], difference["removed"], difference["changed"]


def _differing(row: Mapping[str, Any]) -> str:
    missing, superfluous, changed = _differences(row)
    return (
        f"{row['projection']} differed from Kafka at {row['created_at'][:16]}: {missing} missing, "
        f"{superfluous} that should not be there, {changed} with other values"
    )


def keys(listed: Sequence[Mapping[str, Any]], published: Sequence[str], now: datetime) -> Finding:
    """Check the API keys.

    Args:
        listed: The keys that are accepted.
        published: Settings with a public development key, if it is used over a network.
        now: The time.
    """
    if published:
        found = f"public keys of development are used over a network: {', '.join(published)}"
        return Finding("keys", "problem", found, "set keys of your own, restart the gateway")
    unused = [key["name"] for key in listed if _is_unused(key, now)]
    lasting = [key["name"] for key in listed if key["expiresAt"] is None]
    summaries = [counted(len(listed), "API key")]
    if unused:
        summaries.append(f"not used for {KEY_UNUSED_MAX.days} days: {_some(unused)}")
    if lasting:
        summaries.append(f"without expiry: {_some(lasting)}")
    if unused or lasting:
        command = "headwater keys revoke" if unused else "headwater keys rotate --expires 90d"
        return Finding("keys", "warning", "; ".join(summaries), command)
    return Finding("keys", "ok", summaries[0])


def _is_unused(key: Mapping[str, Any], now: datetime) -> bool:
    used = key["lastUsedAt"] or key["createdAt"]
    return now - datetime.fromisoformat(used) > KEY_UNUSED_MAX


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def disk(folder: str, free: int, total: int) -> Finding:
    """Check the free disk space for data on this machine, in bytes."""
    space = f"{free / 1024**3:,.1f} of {total / 1024**3:,.1f} GiB free at {folder}"
    if free < DISK_FREE_MIN or free < total * DISK_FREE_SHARE:
        advice = f"du -sh {quote(folder)}/*; free some space"
        return Finding("disk", "problem", space, advice)
    return Finding("disk", "ok", space)


def clock_offset_s(server_s: float, sent_s: float, received_s: float) -> float:
    """Return how far a server's clock is certainly ahead; negative if behind. In seconds.

    Args:
        server_s: Time of its response, which HTTP cuts to whole seconds.
        sent_s: Time here when the request was sent.
        received_s: Time here when the response was received.
    """
    earliest, latest = server_s - received_s, server_s + 1 - sent_s
    return max(earliest, 0.0) + min(latest, 0.0)


def monitored(states: Mapping[str, str]) -> Finding:
    """Check the readiness of processes, by their names and addresses."""
    summary = "; ".join(f"{name}: {state}" for name, state in states.items())
    if all(state == "ready" for state in states.values()):
        return Finding("metrics", "ok", summary)
    return Finding("metrics", "warning", summary, "see the logs of those that are not ready")


def clock(offsets: Mapping[str, float]) -> Finding:
    """Check the clocks of other machines against this one's; offsets are in seconds."""
    summary = ", ".join(f"{name} {seconds:+.1f} s" for name, seconds in offsets.items())
    if any(abs(seconds) > CLOCK_OFFSET_MAX_S for seconds in offsets.values()):
        return Finding(
            "clock", "problem", summary, "set the clocks by NTP: signatures hold for five minutes"
        )
    if not summary:
        return Finding("clock", "unknown", "no other clock to compare with")
    return Finding("clock", "ok", summary)


def certificates(ends: Mapping[str, datetime], now: datetime) -> Finding:
    """Check when TLS certificates expire."""
    if not ends:
        return Finding("certificates", "ok", "no TLS in use")
    summary = ", ".join(f"{name} until {end:%Y-%m-%d}" for name, end in ends.items())
    if min(ends.values()) <= now:
        advice = "renew what has expired, restart the processes"
        return Finding("certificates", "problem", summary, advice)
    if min(ends.values()) < now + CERTIFICATE_EXPIRES_SOON:
        advice = "renew it, and restart the processes"
        return Finding("certificates", "warning", summary, advice)
    return Finding("certificates", "ok", summary)
