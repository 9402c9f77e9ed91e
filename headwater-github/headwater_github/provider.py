"""GitHub as a provider: how its deliveries are signed and read, and what becomes of them.

Every delivery about a pull request brings all of it: of two, what GitHub changed later stays.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import json

from headwater.processors.columns import RowUpdate
from headwater.processors.dates import read_date, unix_ms
from headwater.processors.providers.envelope import Routing
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.results import Normalized
from headwater.processors.signature_schemes import SCHEMES
from headwater.processors.texts import text_problem
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import Table
from headwater_github.tables import PULL_REQUESTS, PUSHES

EVENT: Final = "x-github-event"
#: Where the columns are in what GitHub posts.
_PATHS: Final = {
    PUSHES: {name: name for name in PUSHES.field_names[:-2]}
    | {
        "repository_id": "repository.id",
        "repository": "repository.full_name",
        "pushed_at": "repository.pushed_at",
        "user_id": "sender.id",
        "pusher": "sender.login",
    },
    PULL_REQUESTS: {name: f"pull_request.{name}" for name in PULL_REQUESTS.field_names[:-2]}
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


def _key(path: str, found: object) -> str:
    text = str(found) if isinstance(found, int | str) else ""
    fault = text_problem(path, text) if text else f"{path}: expected a text or number, found none"
    if fault:
        raise MalformedPayload(fault)
    return text


def _time(path: str, found: object) -> str | None:
    if found is None:
        return None
    moment = read_date(found) if isinstance(found, str) else None
    if type(found) is int and 0 <= found < 1 << 37:  # seconds, as pushed_at of pushes is
        moment = datetime.fromtimestamp(found, UTC)
    if moment is None:
        raise MalformedPayload(f"{path}: expected a time, found {ascii(found)[:40]}")
    return moment.isoformat()


def _text(found: list[Any]) -> str:
    return json.encode(found).decode()


def _list(path: str, found: object) -> list[Any]:
    if not isinstance(found, list):
        raise MalformedPayload(f"{path}: expected a list, found {ascii(found)[:40]}")
    return found


#: What makes a value of what is there. Else it is as sent, and the pipeline sees that it fits.
_MADE_BY: Final[Mapping[str, Callable[[str, Any], Any]]] = (
    dict.fromkeys(("repository_id", "number", "ref", "after"), _key)
    | dict.fromkeys(("pushed_at", "created_at", "changed_at", "closed_at", "merged_at"), _time)
    | {
        "commits": lambda path, found: len(_list(path, found)),
        "labels": lambda path, found: _text([_at(each, "name") for each in _list(path, found)]),
        "user_id": lambda path, found: None if found is None else f"github:{_key(path, found)}",
    }
)


def decode(body: bytes) -> dict[str, Any]:
    """Reads a body: JSON, in a form unless the webhook is set to application/json."""
    try:
        if body.startswith(b"payload="):
            body = parse_qs(body, strict_parsing=True)[b"payload"][0]
        return json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise MalformedPayload(str(error)) from error


def _at(found: Any, path: str) -> Any:  # noqa: ANN401 (JSON)
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def read(body: bytes, headers: Mapping[str, str]) -> Routing:
    """Says what a delivery is; its repository owns its rows, if it is about one."""
    type_, repository = _key(EVENT, headers.get(EVENT)), _at(decode(body), "repository.id")
    return Routing(type_, "" if repository is None else _key("repository.id", repository))


def normalize(table: Table, event: WebhookAdmitted, _: str, payload: dict[str, Any]) -> Normalized:
    """Makes a row of a delivery."""
    values = {column: _at(payload, path) for column, path in _PATHS[table].items()}
    for column in values.keys() & _MADE_BY.keys():
        values[column] = _MADE_BY[column](_PATHS[table][column], values[column])
    # All of a key is there, but perhaps the time of a push.
    came = _time("", event.received_at_ms // 1000)
    key = tuple(str(values.pop(name) or came) for name in table.key_names)
    changed = read_date(values.get("changed_at") or "")
    stamp = event.stamp(rank=0 if changed is None else unix_ms(changed))
    return Normalized((RowUpdate(table, key, values, stamp),))


GITHUB: Final = Provider(
    name="github",
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
