"""Findings of `headwater doctor user`: why data of a user is missing, in six steps.

They look at each provider by itself: one wearable that works hides no other that does not.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, TypeAlias

from headwater.gateway.cli.findings import Finding, is_well
from headwater.gateway.cli.output import counted

#: The answer of GET /admin/user/{id}.
User: TypeAlias = Mapping[str, Any]

#: Reason of a delivery that died before its user had connected.
_NO_CONNECTION = "no_connection_for_terra_user"


def user_findings(
    url: str, user: User, errors: Sequence[Mapping[str, Any]], me: object
) -> list[Finding]:
    """Return the findings of all steps.

    Args:
        url: URL of the gateway.
        user: The system's data of the user.
        errors: Traces of the user that ended with an error, newest first.
        me: Answer of /v1/me; None if it was not requested, which needs the user's token.
    """
    user = {**user, "connections": _with_providers(user["connections"])}
    steps = [_connection(user, me), _reconciled(url, user, me), _deliveries(user), _errors(errors)]
    return [*steps, _rows(user, steps), _silence(url, user)]


def _connection(user: User, me: object) -> Finding:
    """Step 1: whether every provider that the user had has an active connection.

    One that has ended is no problem: nothing tells whether the user ended it. A reconcile opens it
    again only if Terra still lists it.
    """
    check = "1 active connection"
    closed = _closed(user)
    summary = [f"{row['provider']} ({row['terra_user_id']})" for row in _active(user)]
    summary += [f"{row['provider']} until {row['deactivated_at']}" for row in closed]
    if not summary:
        return _unconnected(check, user)
    if closed:
        is_listed = not _listed(me).isdisjoint(row["provider"] for row in closed)
        advice = _command("reconcile", user) if is_listed else ""
        return Finding(check, "warning", ", ".join(summary), advice)
    return Finding(check, "ok", ", ".join(summary))


def _unconnected(check: str, user: User) -> Finding:
    if user["sources"]:
        names = ", ".join(sorted({source["source"] for source in user["sources"]}))
        return Finding(check, "ok", f"none, and none needed: rows come from {names}")
    if not any(user["counts"].values()):
        found = "this user is unknown: no connection, delivery or row"
        return Finding(check, "problem", found, "check the id, or connect the user")
    return Finding(check, "problem", "none, now or before", _command("reconcile", user))


def _reconciled(url: str, user: User, me: object) -> Finding:
    """Step 2: what Terra's own list of subscriptions contains."""
    check = "2 reconciled with Terra"
    active, closed = ({row["provider"] for row in rows} for rows in (_active(user), _closed(user)))
    if isinstance(me, dict):
        if me.get("reconciled") is False:
            return Finding(check, "unknown", "Terra does not answer", _command("reconcile", user))
        listed = _listed(me)
        lacking = sorted((active | closed) - listed)
        if listed and not lacking:
            return Finding(check, "ok", f"Terra has {', '.join(sorted(listed))}")
        advice = f"the user connects again: POST {url}/v1/connect"
        lost = f"Terra has no {', '.join(lacking) or 'connection'} of this user"
        has_ended = bool(closed) and active <= listed
        return Finding(check, "warning" if has_ended else "problem", lost, advice)
    if closed:
        return Finding(check, "warning", "not checked: needs --token of the user")
    if active or user["sources"]:
        why = "a connection of every provider is active" if active else "there are no connections"
        return Finding(check, "ok", f"not needed: {why}")
    return Finding(check, "unknown", "not checked", _command("reconcile", user))


def _deliveries(user: User) -> Finding:
    """Step 3: deliveries that wait or are dead; those that were processed since do not count."""
    check = "3 waiting and dead"
    provider_of = {row["terra_user_id"]: row["provider"] for row in user["connections"]}
    dead = user["dead"]
    numbers = Counter(
        (provider_of.get(row["subject"]) or row["source"], row["reason"]) for row in dead
    )
    summary = "; ".join(
        [
            f"{len(user['waiting'])} waiting, {len(dead)} dead",
            *(f"{provider}: {number} {reason}" for (provider, reason), number in numbers.items()),
        ]
    )
    unassigned = [row["event_id"] for row in dead if row["reason"] == _NO_CONNECTION]
    if unassigned:
        return Finding(check, "problem", summary, f"headwater replay {' '.join(unassigned)}")
    if dead:
        command = f"headwater deliveries list --status dead --user {quote(user['user_id'])}"
        return Finding(check, "problem", summary, command)
    if user["waiting"]:
        command = f"headwater deliveries drain --user {quote(user['user_id'])}"
        return Finding(check, "problem", summary, command)
    return Finding(check, "ok", summary)


def _errors(journeys: Sequence[Mapping[str, Any]]) -> Finding:
    """Step 4: traces that ended with an error."""
    check = "4 errors in traces"
    if not journeys:
        return Finding(check, "ok", "none")
    newest = journeys[0]
    detail = newest["hops"][-1].get("detail") if newest["hops"] else None
    summary = f"{len(journeys)}, the newest {newest['ended_at']}"
    return Finding(
        check,
        "problem",
        summary + (f": {detail}" if detail else ""),
        f"headwater trace {newest['request_id']}",
    )


def _rows(user: User, before: Sequence[Finding]) -> Finding:
    """Step 5: if all else is well and a provider has no rows, they have to be imported."""
    check = "5 rows of every provider"
    providers = sorted({row["provider"] for row in _active(user)})
    rows = {provider: _rows_of(user, provider) for provider in providers}
    if not (rows or user["connections"]):
        names = sorted({source["source"] for source in user["sources"]})
        rows = {name: _rows_of(user, name) for name in names}
    summary = "; ".join(f"{provider}: {text or 'no rows'}" for provider, text in rows.items())
    if rows and all(rows.values()):
        return Finding(check, "ok", summary)
    summary = summary or "no active connection"
    if not is_well(before):
        return Finding(check, "unknown", f"{summary}; fix the findings above first")
    if not rows:
        return Finding(check, "warning", summary)
    return Finding(check, "problem", summary, f"{_command('import', user)} --days 365")


def _silence(url: str, user: User) -> Finding:
    """Step 6: whether new data still arrives of every active connection."""
    check = "6 new data"
    activity = user.get("activity", ())
    summary = "; ".join(map(_activity_text, activity)) or "no active connection"
    if any(row["state"] == "failing" for row in activity):
        return Finding(check, "problem", summary, f"the user connects again: POST {url}/v1/connect")
    if any(row["state"] == "silent" for row in activity):
        return Finding(check, "warning", summary, _command("reconcile", user))
    return Finding(check, "ok", summary)


def _activity_text(row: Mapping[str, Any]) -> str:
    text = f"{row['provider']}: {row['state']}, newest day {row['last_day'] or 'none'}"
    if row["failing_since"]:
        return f"{text}, Terra reports an error since {row['failing_since']}"
    return f"{text}, last delivery {row['last_delivery_at'] or 'none'}"


def _rows_of(user: User, provider: str) -> str:
    """Return how many rows a provider has, and when the last one arrived; empty without rows."""
    names = (provider.lower(), f"{provider.lower()}_body")
    sources = [source for source in user["sources"] if source["source"] in names]
    if not sources:
        return ""
    rows = [
        counted(number, f"row of {table}", f"rows of {table}")
        for source in sources
        for table, number in source["rows"].items()
    ]
    return f"{', '.join(rows)}, last {max(source['updated_at'] for source in sources)}"


def _with_providers(connections: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return connections; those of which only the end was received have no provider."""
    return [{**row, "provider": row["provider"] or "unknown"} for row in connections]


def _active(user: User) -> list[Mapping[str, Any]]:
    return [row for row in user["connections"] if row["active"]]


def _closed(user: User) -> list[Mapping[str, Any]]:
    """Return closed connections of providers without an active one."""
    active = {row["provider"] for row in _active(user)}
    return [row for row in user["connections"] if row["provider"] not in active]


def _listed(me: object) -> set[str]:
    """Return the providers that Terra lists, according to /v1/me."""
    if not isinstance(me, dict) or me.get("reconciled") is False:
        return set()
    return {row["provider"] for row in _with_providers(me["connections"]) if row["active"]}


def _command(name: str, user: User) -> str:
    return f"headwater user {name} {quote(user['user_id'])}"
