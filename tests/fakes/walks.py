"""A provider as small as one can be, and as another package would declare it: walks of a day."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from headwater.processors.columns import RowUpdate
from headwater.processors.input_texts import text_problem
from headwater.processors.providers.envelope import Malformed, Routing
from headwater.processors.providers.provider import DeliveryType, Provider
from headwater.processors.providers.results import Normalized, NormalizeResult
from headwater.processors.signature_schemes import SCHEMES
from headwater.schemas.errors import MalformedPayload
from headwater.schemas.records import WebhookAdmitted
from headwater.schemas.tables import DAILY_SUMMARY


class Walk(msgspec.Struct, frozen=True):
    walker: str
    day: str = ""
    steps: int = 0


def decode(body: bytes) -> Walk:
    try:
        return msgspec.json.decode(body, type=Walk)
    except msgspec.DecodeError as error:
        raise MalformedPayload(str(error)) from error


def read(body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
    walk, type_ = decode(body), headers.get("x-walk-event", "")
    fault = text_problem("x-walk-event", type_) or text_problem("walker", walk.walker)
    return Malformed("malformed_id", fault) if fault else Routing(type_, "", walk.walker)


def normalize(event: WebhookAdmitted, user_id: str, walk: Walk) -> NormalizeResult:
    key = (user_id, "walks", walk.day)
    return Normalized((RowUpdate(DAILY_SUMMARY, key, {"steps": walk.steps}, event.stamp()),))


WALKS = Provider(
    name="walks",
    scheme=SCHEMES["github"],
    headers=("x-walk-event",),
    type_header="x-walk-event",
    read=read,
    types={"walk": DeliveryType(decode=decode, normalize=normalize, tables=(DAILY_SUMMARY,))},
    skipped=frozenset({"ping"}),
)

UNTYPED = replace(WALKS, type_header=None)
STANDARD = replace(WALKS, scheme=SCHEMES["standard-webhooks"])

NOT_A_PROVIDER = "walks"
