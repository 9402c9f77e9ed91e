"""What a doctor finds, and what it is made of: pure functions over what was asked elsewhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import Any, Final, Literal, NamedTuple

from headwater.gateway.commands.output import counted
from headwater.schemas.deployments import DeploymentCreated

State = Literal["ok", "warning", "problem", "unknown"]

#: A signature holds for five minutes; a clock that is wrong by less than this refuses none.
CLOCK_WRONG_S: Final = 60
CERTIFICATE_SOON: Final = timedelta(days=21)
DISK_FREE_MIN: Final = 2 * 1024**3
DISK_FREE_SHARE: Final = 0.10
#: Records that a reader may be behind in passing.
BEHIND_MAX: Final = 10_000
#: What a house has at least, as members call themselves.
PARTS: Final = ("pipeline", "projector")


class Finding(NamedTuple):
    """One thing that was looked at: what was found, and what to do next, if anything."""

    check: str
    state: State
    found: str
    next: str = ""


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether there is nothing to mend."""
    return all(finding.state in ("ok", "warning") for finding in findings)


# --- one user: the five steps, in their order


def connection(user_id: str, known: Mapping[str, Any]) -> Finding:
    """Step 1: is there an active connection?"""
    every = known["connections"]
    active = [each for each in every if each["active"]]
    check = "1 active connection"
    if active:
        names = ", ".join(f"{each['provider']} ({each['terra_user_id']})" for each in active)
        return Finding(check, "ok", names)
    gone = ", ".join(f"{each['provider']} until {each['deactivated_at']}" for each in every)
    return Finding(
        check, "problem", gone or "none, now or before", f"headwater token {quote(user_id)}"
    )


def reconciled(user_id: str, url: str, known: Mapping[str, Any], me: object) -> Finding:
    """Step 2: what Terra's own list of subscriptions says.

    Shape:  `me` is the answer of /v1/me, None if nobody could ask: it takes the user's token.
    """
    check = "2 reconciled with Terra"
    has_active = any(each["active"] for each in known["connections"])
    ask = f'curl -H "Authorization: Bearer $(headwater token {quote(user_id)})" {url}/v1/me'
    if isinstance(me, dict):
        active = [each["provider"] for each in me["connections"] if each["active"]]
        if me.get("reconciled") is False:
            return Finding(check, "unknown", "Terra does not answer", ask)
        if active:
            return Finding(check, "ok", f"Terra has {', '.join(active)}")
        again = f"the user connects again: POST {url}/v1/connect"
        return Finding(check, "problem", "Terra has no connection of this user", again)
    if has_active:
        return Finding(check, "ok", "not needed: a connection is active")
    return Finding(check, "unknown", "not asked: it takes the user's token (--token)", ask)


def parked(user_id: str, known: Mapping[str, Any]) -> Finding:
    """Step 3: rows, and what stands in their way."""
    check = "3 rows, waiting and dead"
    counts = known["counts"]
    rows = {
        name: number
        for name, number in counts.items()
        if number and name not in ("raw_events", "dead_letters")
    }
    found = ", ".join(f"{number} {name}" for name, number in rows.items()) or "no rows"
    found += f"; {len(known['waiting'])} waiting, {counts.get('dead_letters', 0)} dead"
    if counts.get("dead_letters"):
        return Finding(check, "problem", found, "headwater dlq list")
    if known["waiting"]:
        command = f"headwater deliveries drain --user {quote(user_id)}"
        return Finding(check, "problem", found, command)
    return Finding(check, "ok", found)


def errors(journeys: Sequence[Mapping[str, Any]]) -> Finding:
    """Step 4: journeys that ended with an error."""
    check = "4 errors in traces"
    if not journeys:
        return Finding(check, "ok", "none")
    newest = journeys[0]
    detail = newest["hops"][-1].get("detail") if newest["hops"] else None
    found = f"{len(journeys)}, the newest {newest['ended_at']}"
    return Finding(
        check,
        "problem",
        found + (f": {detail}" if detail else ""),
        f"headwater trace {newest['request_id']}",
    )


def to_import(
    user_id: str, url: str, known: Mapping[str, Any], before: Sequence[Finding]
) -> Finding:
    """Step 5: if all else is well and there are no days, they have to be asked for."""
    check = "5 import"
    days = known["counts"].get("daily_summary", 0)
    if days:
        return Finding(check, "ok", f"not needed: {counted(days, 'row')} of daily_summary")
    if any(finding.state != "ok" for finding in before):
        return Finding(check, "unknown", "not yet: mend what is above first")
    command = (
        f'curl -X POST -H "Authorization: Bearer $(headwater token {quote(user_id)})" '
        f"-H 'Content-Type: application/json' -d '{{\"days\": 365}}' {url}/v1/import"
    )
    return Finding(check, "problem", "nothing is in the way, and there are no days", command)


# --- the house


def parts(names: Sequence[str]) -> Finding:
    """Which members of the house are up."""
    missing = [part for part in PARTS if not any(name.split()[0] == part for name in names)]
    found = ", ".join(names) or "none"
    if missing:
        start = {"pipeline": "headwater worker", "projector": "headwater project"}
        commands = "; ".join(start[part] for part in missing)
        return Finding("parts", "problem", f"{found}; missing: {', '.join(missing)}", commands)
    return Finding("parts", "ok", found)


def versions(ours: str, gateways: str, older: Mapping[str, Sequence[str]]) -> Finding:
    """Whether all parts are of one release, as far as what they read tells it."""
    behind = [f"{name} reads no newest {', '.join(schemas)}" for name, schemas in older.items()]
    if gateways != ours:
        behind.append(f"the gateway is {gateways}")
    if behind:
        return Finding(
            "versions", "warning", f"this is {ours}; {'; '.join(behind)}", "restart those parts"
        )
    return Finding("versions", "ok", f"all {ours}")


def migrations(missing: Sequence[str]) -> Finding:
    """Whether the database is that of this release."""
    if missing:
        return Finding(
            "migrations", "problem", f"missing: {', '.join(missing)}", "headwater migrate"
        )
    return Finding("migrations", "ok", "all applied")


def topics(differences: Sequence[Any]) -> Finding:
    """Whether topics are as the catalogue has them."""
    if not differences:
        return Finding("topics", "ok", "as the catalogue has them")
    state: State = "problem" if any(each.loses_data for each in differences) else "warning"
    found = "; ".join(each.line() for each in differences[:3])
    more = f"; {len(differences) - 3} more" if len(differences) > 3 else ""
    return Finding("topics", state, found + more, "headwater topics check")


def lag(behind: Mapping[str, int]) -> Finding:
    """How far behind those are who read."""
    found = ", ".join(f"{name} {number:,}" for name, number in sorted(behind.items())) or "none"
    slow = [name for name, number in behind.items() if number > BEHIND_MAX]
    if slow:
        ask = "see whether it falls: run this again; if not, look at the log of that part"
        return Finding("lag", "warning", found, ask)
    return Finding("lag", "ok", f"records behind: {found}")


def deployment(active: DeploymentCreated | None, fault: str) -> Finding:
    """Which deployment new runs begin on, and whether workers can read it."""
    if active is None:
        found = "none is active: runs are of the apps that workers are started with"
        return Finding("deployment", "ok", found)
    if fault:
        return Finding("deployment", "problem", fault, "headwater deployments rollback")
    names = ", ".join(each.name for each in active.workflows)
    return Finding("deployment", "ok", f"{active.id} of {active.app}: {names}")


def refused_records(number: int | None) -> Finding:
    """Records that the projector could not apply; None if nobody could be asked."""
    if number is None:
        return Finding("projector's errors", "unknown", "the gateway could not be asked")
    if number:
        return Finding(
            "projector's errors",
            "problem",
            f"{counted(number, 'record')} not applied",
            "select * from projection_errors; and report it: these are bugs",
        )
    return Finding("projector's errors", "ok", "none")


def disk(folder: str, free: int, total: int) -> Finding:
    """Room for the data on this machine."""
    found = f"{free / 1024**3:,.1f} of {total / 1024**3:,.1f} GiB free at {folder}"
    if free < DISK_FREE_MIN or free < total * DISK_FREE_SHARE:
        return Finding("disk", "problem", found, f"du -sh {quote(folder)}/*; give it more room")
    return Finding("disk", "ok", found)


def clock(of_others: Mapping[str, float]) -> Finding:
    """How far clocks of others are from this machine's, in seconds."""
    found = ", ".join(f"{name} {seconds:+.1f} s" for name, seconds in of_others.items())
    if any(abs(seconds) > CLOCK_WRONG_S for seconds in of_others.values()):
        return Finding(
            "clock", "problem", found, "set the clocks by NTP: signatures hold for five minutes"
        )
    if not found:
        return Finding("clock", "unknown", "nobody to compare with")
    return Finding("clock", "ok", found)


def certificates(ends: Mapping[str, datetime], now: datetime) -> Finding:
    """When certificates of TLS end."""
    if not ends:
        return Finding("certificates", "ok", "no TLS in use")
    found = ", ".join(f"{name} until {end:%Y-%m-%d}" for name, end in ends.items())
    if min(ends.values()) <= now:
        return Finding("certificates", "problem", found, "renew what has ended, restart the parts")
    if min(ends.values()) < now + CERTIFICATE_SOON:
        return Finding("certificates", "warning", found, "renew it, and restart the parts")
    return Finding("certificates", "ok", found)
