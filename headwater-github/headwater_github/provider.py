"""The GitHub provider: signature scheme, routing and normalizers.

A delivery about a pull request contains its complete state. The state that GitHub changed last
wins.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import json

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import read_date, text_problem, unix_ms
from headwater.processors.providers.envelope import Routing
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.results import Normalized
from headwater.processors.signature_schemes import SCHEMES
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Table
from headwater_github.tables import PULL_REQUESTS, PUSHES

EVENT: Final = "x-github-event"
#: States of a pull request; of one second a later one wins.
_ENDED: Final = ("open", "closed", "merged")
#: Paths of the columns' values in the payload.
_PATHS: Final = {
    PUSHES: {name: name for name in (*PUSHES.key_names, *PUSHES.column_names)}
    | {
        "repository_id": "repository.id",
        "repository": "repository.full_name",
        "pushed_at": "repository.pushed_at",
        "user_id": "sender.id",
        "pusher": "sender.login",
    },
    PULL_REQUESTS: {
        name: f"pull_request.{name}"
        for name in (*PULL_REQUESTS.key_names, *PULL_REQUESTS.column_names)
    }
    | {
        "repository_id": "repository.id",
        "repository": "repository.full_name",
        "user_id": "pull_request.user.id",
        "author": "pull_request.user.login",
        "last_action": "action",
        "base_ref": "pull_request.base.ref",
        "changed_at": "pull_request.updated_at",
    },
}


def _key(path: str, value: object) -> str:
    text = str(value) if isinstance(value, int | str) else ""
    error = text_problem(path, text) if text else f"{path}: expected a text or number, found none"
    if error:
        raise MalformedPayload(error)
    return text


def _time(path: str, value: object) -> str | None:
    if value is None:
        return None
    moment = read_date(value) if isinstance(value, str) else None
    if type(value) is int and 0 <= value < 1 << 37:  # seconds, like pushed_at of pushes
        moment = datetime.fromtimestamp(value, UTC)
    if moment is None:
        raise MalformedPayload(f"{path}: expected a time, found {ascii(value)[:40]}")
    return moment.isoformat()


def _text(value: list[Any]) -> str:
    return json.encode(value).decode()


def _list(path: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedPayload(f"{path}: expected a list, found {ascii(value)[:40]}")
    return value


#: Conversions by column. Other values are used unchanged, and the pipeline validates them.
_CONVERSIONS: Final[Mapping[str, Callable[[str, Any], Any]]] = (
    dict.fromkeys(("repository_id", "number", "ref", "after"), _key)
    | dict.fromkeys(("pushed_at", "created_at", "changed_at", "closed_at", "merged_at"), _time)
    | {
        "commits": lambda path, value: len(_list(path, value)),
        "labels": lambda path, value: _text([_at(label, "name") for label in _list(path, value)]),
        "user_id": lambda path, value: None if value is None else f"github:{_key(path, value)}",
    }
)


def decode(body: bytes) -> dict[str, Any]:
    """Decode a body: JSON, or a form with JSON if the webhook is not set to application/json."""
    try:
        if body.startswith(b"payload="):
            body = parse_qs(body, strict_parsing=True)[b"payload"][0]
        return json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(str(error)) from error


def _at(value: Any, path: str) -> Any:  # noqa: ANN401 (JSON)
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def read(body: bytes, headers: Mapping[str, str]) -> Routing:
    """Return the type of a delivery and its subject, the repository, if it is about one."""
    type_, repository = _key(EVENT, headers.get(EVENT)), _at(decode(body), "repository.id")
    return Routing(type_, "" if repository is None else _key("repository.id", repository))


def normalize(table: Table, event: WebhookAdmitted, _: str, payload: dict[str, Any]) -> Normalized:
    """Convert a delivery into a row."""
    values = {column: _at(payload, path) for column, path in _PATHS[table].items()}
    for column in values.keys() & _CONVERSIONS.keys():
        values[column] = _CONVERSIONS[column](_PATHS[table][column], values[column])
    # All key columns have values, except perhaps the time of a push.
    received = _time("", event.received_at_ms // 1000)
    key = tuple(str(values.pop(name) or received) for name in table.key_names)
    changed = read_date(values.get("changed_at") or "")
    if values.get("merged_at"):
        values["state"] = "merged"  # GitHub's own state of it is closed.
    # GitHub's times have whole seconds: of several changes of one, the one that ended it counts.
    ended = _ENDED.index(values["state"]) if values.get("state") in _ENDED else 0
    stamp = event.stamp(rank=0 if changed is None else unix_ms(changed) + ended)
    return Normalized((RowUpdate(table, key, values, stamp),))


GITHUB: Final = Provider(
    name="github",
    domain="com.github",
    scheme=SCHEMES["github"],
    headers=(EVENT,),
    type_header=EVENT,
    read=read,
    types={
        type_: DeliveryType(
            decode=decode, normalize=partial(normalize, table), tables=(table,), of_user=False
        )
        for type_, table in (("push", PUSHES), ("pull_request", PULL_REQUESTS))
    },
)
