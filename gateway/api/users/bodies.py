"""JSON bodies of requests and responses of the user routes."""

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from headwater.gateway.api.problems import Problem
from headwater.gateway.api.workflows.bodies import Body
from headwater.gateway.builtin.instances import InstanceNamed
from headwater.gateway.settings.patterns import WEARABLE
from headwater.processors.input_texts import text_problem
from headwater.projections.deliveries.imports import Import
from headwater.schemas.history import Limits

DAYS_MAX: Final = 1460
_URL_MAX: Final = 2048
_PROVIDERS_MAX: Final = 100
#: A URL that a browser or an app opens. Script URLs are excluded: they would run in Terra's page.
_URL: Final = re.compile(
    r"(?!javascript:|data:|vbscript:|file:)[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE
)

_Url = Annotated[
    str,
    msgspec.Meta(max_length=_URL_MAX, description="Where Terra redirects the user; any scheme."),
]
_Provider = Annotated[str, msgspec.Meta(pattern=WEARABLE)]


def _unchanged(name: str) -> str:
    return name


class NewConnection(Body, frozen=True, kw_only=True, rename=_unchanged):
    """Wearables that the user may choose from (all by default), and where to redirect to."""

    providers: Annotated[
        tuple[_Provider, ...],
        msgspec.Meta(max_length=_PROVIDERS_MAX, description="Terra's names, for example GARMIN."),
    ] = ()
    success_url: _Url | None = None
    failure_url: _Url | None = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        for name, url in (("success_url", self.success_url), ("failure_url", self.failure_url)):
            if url is not None and (text_problem(name, url, _URL_MAX) or not _URL.fullmatch(url)):
                raise Problem(
                    "invalid_body",
                    f"{at}{name}: expected an address such as https://app.example/done, found "
                    f"{url[:60]!r}",
                    field=f"{at}{name}",
                )


Days: TypeAlias = Annotated[
    Any,
    msgspec.Meta(
        description=f"1 to {DAYS_MAX}; larger values are reduced to {DAYS_MAX}.",
        extra_json_schema={"extra": {"type": "integer", "minimum": 1}},
    ),
]


class NewImport(Body, frozen=True, kw_only=True, rename=_unchanged):
    """Number of past days to import."""

    days: Days = None

    @override
    def check(self, limits: Limits, at: str = "") -> None:
        days_of(self.days, at)


def days_of(days: object, at: str = "") -> int:
    """Return a number of days; in JSON, 30.0 is the same number as 30.

    Raises:
        Problem: It is not a whole number above 0.
    """
    # Python's bool is an int, so isinstance would accept it.
    if type(days) is float and days.is_integer():
        days = int(days)
    if type(days) is not int or days < 1:
        received = "nothing" if days is None else repr(days)[:60]
        raise Problem(
            "invalid_days",
            f"{at}days: expected a whole number from 1 to {DAYS_MAX}, found {received}",
            field=f"{at}days",
        )
    return days


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A page on which the user connects a wearable. `expires_in` is in seconds."""

    url: str
    session_id: str
    expires_in: int


class Importing(msgspec.Struct, frozen=True, kw_only=True):
    """An import that was started: its size, and the workflow instance to follow."""

    ok: bool
    days: int
    connections: int
    requests: int
    instance: InstanceNamed


#: Description of the routes that answer with `Imports`.
IMPORTS: Final = (
    "The latest 10 imports, and backfills of connections that became active, newest first. For "
    "each connection and type of data: Terra's answer, what has come since, the days of the import "
    "with data, and those without."
)


class Imports(msgspec.Struct, frozen=True):
    """The latest imports of a user, newest first."""

    imports: list[Import]


class Reconciling(msgspec.Struct, frozen=True, kw_only=True):
    """A reconcile that was started: the workflow instance to follow."""

    ok: bool
    instance: InstanceNamed


class Disconnecting(msgspec.Struct, frozen=True, kw_only=True):
    """Connections that are being ended: their number, and the workflow instance to follow.

    Without an instance, the connection was closed already.
    """

    ok: bool
    connections: int
    instance: InstanceNamed | None


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """A lab report that was stored, and Terra's response to it."""

    ok: bool
    upload_id: str
    storage_key: str
    terra_status: str
    note: str
