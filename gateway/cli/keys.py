"""`headwater keys`: create, list, rotate and revoke API keys."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import click

from headwater.gateway.cli.api import Api, admin_options, now, path_of
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import confirm, examples, yes_option
from headwater.gateway.cli.results import Columns, Result, listing, prints
from headwater.gateway.client.texts import moment
from headwater.processors.api_keys import Role, Scope
from headwater.processors.runs.durations import milliseconds

_LISTED: Final = Columns(
    ("id", "name", "state", "role", "scopes", "expires", "last used", "created", "by"),
    drops=("by", "created", "scopes"),
    styles={"state": {"expired": "yellow", "revoked": "red"}},
)
_KEYS: Final = "/v1/keys"


def _span_ms(_context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return milliseconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_expires: Final = click.option(
    "--expires",
    "expires_ms",
    metavar="SPAN",
    callback=_span_ms,
    help="How long it is accepted: 90d, 12h.",
)


@click.group(
    cls=Group,
    epilog=examples(
        "headwater keys create ci --scope deployments:write --scope deployments:activate",
        "headwater keys create amara --role operator --expires 90d",
        "headwater keys list",
        "headwater keys rotate key_3f9a2c7d41e05b6a8c1d",
        "headwater keys revoke key_3f9a2c7d41e05b6a8c1d",
    ),
)
def keys() -> None:
    """Create, list, rotate and revoke API keys.

    A key is accepted by every gateway of its project, as Authorization: Bearer, x-api-key or
    x-admin-key; in HEADWATER_ADMIN_KEY, too. Its text is shown once.
    """


@keys.command(
    epilog=examples(
        "headwater keys create dashboards --role viewer",
        "headwater keys create ci --scope deployments:write --expires 90d",
        "export KEY=$(headwater keys create jobs --scope jobs:work --json | jq -r .key)",
    )
)
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in Role]), help="A named set of scopes."
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    metavar="SCOPE",
    multiple=True,
    help=f"What it may do; repeatable. One of {', '.join(Scope)}.",
)
@_expires
@click.option(
    "--rate-limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Requests per minute. Default: the limit of the gateway's settings.",
)
@admin_options
@prints
def create(
    name: str,
    role: str | None,
    scopes: tuple[str, ...],
    expires_ms: int | None,
    rate_limit: int | None,
    api: Api,
) -> Result:
    """Create a key, and print it. It cannot be printed again."""
    if role is None and not scopes:
        raise click.UsageError("expected --role or --scope, found neither")
    body = {
        "name": name,
        "role": role,
        "scopes": list(scopes),
        "expiresAt": _time_in(expires_ms),
        "rateLimit": rate_limit,
    }
    return _shown(api.post(_KEYS, {field: value for field, value in body.items() if value}))


@keys.command("list", epilog=examples("headwater keys list", "headwater keys list --ended --json"))
@click.option("--ended", is_flag=True, help="Also keys that were revoked or have expired.")
@admin_options
@prints
def list_keys(ended: bool, api: Api) -> Result:
    """List keys, newest first. Their texts are not stored.

    The time of the last use is the beginning of an hour.
    """
    listed = api.get(_KEYS, ended="true" if ended else None)["keys"]
    none = "There are no keys: `headwater keys create NAME --role …` creates one."
    return listing(listed, _LISTED.table(map(_row, listed)), none=none)


@keys.command(
    epilog=examples(
        "headwater keys rotate key_3f9a2c7d41e05b6a8c1d",
        "headwater keys rotate key_3f9a2c7d41e05b6a8c1d --overlap 1h --expires 90d",
        "headwater keys rotate key_3f9a2c7d41e05b6a8c1d --overlap 0s    it has leaked",
    )
)
@click.argument("key_id", metavar="ID")
@click.option(
    "--overlap",
    "overlap_ms",
    metavar="SPAN",
    default="24h",
    show_default=True,
    callback=_span_ms,
    help="How long the previous text is accepted.",
)
@_expires
@admin_options
@prints
def rotate(key_id: str, overlap_ms: int, expires_ms: int | None, api: Api) -> Result:
    """Give a key a new text, and print it. Id, name and scopes stay."""
    body = {"overlapSeconds": overlap_ms // 1000}
    expires_at = _time_in(expires_ms)
    rotated = api.post(
        path_of("v1", "keys", key_id) + "/rotate",
        body | ({"expiresAt": expires_at} if expires_at else {}),
    )
    return _shown(rotated)


@keys.command(
    epilog=examples(
        "headwater keys revoke key_3f9a2c7d41e05b6a8c1d",
        "headwater keys revoke key_3f9a2c7d41e05b6a8c1d --yes",
    )
)
@click.argument("key_id", metavar="ID")
@yes_option
@admin_options
@prints
def revoke(key_id: str, yes: bool, api: Api) -> Result:
    """Revoke a key, and the keys that it created: all gateways refuse them within seconds.

    They cannot be accepted again. Endpoints that they created are disabled. To keep the keys that
    it created, rotate it with --overlap 0s instead, and discard the new text.
    """
    key = api.get(path_of("v1", "keys", key_id))
    created = _created_by(key_id, api.get(_KEYS)["keys"])
    lines = [f"{_named(key)} will be refused."]
    if created:
        lines.append(f"So will the keys that it created: {', '.join(map(_named, created))}.")
    lines.append("Endpoints that they created will be disabled.")
    confirm("\n".join(lines), "Revoke it?", yes=yes)
    revoked = api.post(path_of("v1", "keys", key_id) + "/revoke", {})
    hints = []
    if revoked["revokedKeys"]:
        hints.append(f"Revoked with it: {', '.join(revoked['revokedKeys'])}.")
    if revoked["rotatedKeys"]:
        hints.append(
            f"It had drawn the texts of {', '.join(revoked['rotatedKeys'])}, which are accepted: "
            "rotate these keys if it has leaked."
        )
    hints += _endpoint_hints(revoked)
    return Result(answer=revoked, tables=[_LISTED.table([_row(revoked)])], hints=hints)


def _endpoint_hints(revoked: dict[str, Any]) -> Iterator[str]:
    """Yield what a revocation means for endpoints. Earlier gateways do not say it."""
    disabled = revoked.get("disabledEndpoints")
    if disabled:
        yield f"Endpoints that they created were disabled: {', '.join(disabled)}."
    rotated = revoked.get("rotatedEndpoints")
    if rotated:
        yield (
            f"They had drawn the secrets of {', '.join(rotated)}: rotate the secrets of these "
            "endpoints if a key has leaked."
        )


def _created_by(key_id: str, newest_first: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the keys that a key created, and those that these created, and so on."""
    creators, created = {key_id}, []
    for key in reversed(newest_first):
        if key["createdBy"] in creators:
            creators.add(key["id"])
            created.append(key)
    return created


def _named(key: dict[str, Any]) -> str:
    used = f"last used {_at(key['lastUsedAt'])}" if key["lastUsedAt"] else "never used"
    return f"{key['id']} ({key['name']}, {used})"


def _time_in(span_ms: int | None) -> str | None:
    """Return the time after a span from now, in RFC 3339."""
    return None if span_ms is None else (now() + timedelta(milliseconds=span_ms)).isoformat()


def _shown(key: dict[str, Any]) -> Result:
    hints = [f"{key['id']} ({key['name']}): {', '.join(key['scopes'])}"]
    if key["expiresAt"] is None:
        hints.append("It does not expire: --expires 90d sets a time.")
    else:
        hints.append(f"It expires {_at(key['expiresAt'])}.")
    if key["previousUntil"] is not None:
        hints.append(f"The previous text is accepted until {_at(key['previousUntil'])}.")
    return Result(answer=key, text=f"{key['key']}\n", hints=hints)


def _at(time: str | None) -> str:
    return "never" if time is None else moment(datetime.fromisoformat(time))


def _row(key: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": key["id"],
        "name": key["name"],
        "state": key["state"],
        "role": key["role"],
        "scopes": len(key["scopes"]) if key["role"] else ", ".join(key["scopes"]),
        "expires": _at(key["expiresAt"]),
        "last used": _at(key["lastUsedAt"]),
        "created": _at(key["createdAt"]),
        "by": key["createdBy"],
    }
