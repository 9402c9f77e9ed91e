"""Providers: senders of webhooks and their declarations, and the owners of their deliveries.

Everything specific to a provider is in its declaration: where its deliveries are posted and how
they are signed, what a body means and whom it is about, which types of deliveries exist, and how
they become rows. Gateway and pipeline know only names of providers. Installed packages add
providers through the entry point group `headwater.providers`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Raw, json
from msgspec.structs import replace

from headwater.processors.columns import update_problem
from headwater.processors.input_texts import check_numbers, time_problem
from headwater.processors.providers.envelope import (
    MALFORMED,
    UNDECODABLE,
    UNKNOWN,
    UNREADABLE,
    Malformed,
    Routing,
    event_id,
    occurrence_of,
    sent_at_ms,
    user_of,
)
from headwater.processors.providers.results import (
    Effect,
    Failed,
    Normalized,
    NormalizeResult,
    Skipped,
    updates_of,
)
from headwater.processors.signature_schemes import SignatureScheme
from headwater.schemas.errors import PARSE_ERRORS, MalformedPayload, excerpt
from headwater.schemas.records import Delivery, WebhookAdmitted, WebhookReceived
from headwater.schemas.tables import CONNECTIONS, TERRA_LAB_UPLOADS, Owner, Row, Table

P = TypeVar("P")

#: Reason of a delivery without a user or subject.
NO_USER: Final = "no_user"

#: Reason of a delivery of a source without a normalizer.
NO_NORMALIZER: Final = "no_normalizer"

#: Reason of a delivery that would fill a table which its type does not declare.
UNDECLARED_TABLE: Final = "undeclared_table"

#: Reason of a delivery with a value that its column cannot store.
UNFIT_VALUE: Final = "unfit_value"

#: Initial version of a normalizer, which is the default in stamps.
_FIRST_VERSION: Final = 1

#: The name is a segment of a path, a label of metrics and part of the name of a setting.
_NAME: Final = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PATH: Final = re.compile(r"/[^{}\s]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A table that maps subjects to users; its key is the subject.

    Attributes:
        table: A table with a column `user_id`.
        our_id: Column with Headwater's own id of the subject, if any.
        missing: Reason of a delivery that waits for the row.
        expected: Text for a delivery that waited in vain: what was missing.
        cure: Text for them: what to do.
    """

    table: Table
    our_id: str | None = None
    missing: str
    expected: str
    cure: str

    def user_in(self, row: Row | None) -> str | None:
        """Return the user that a row names, or None."""
        return None if row is None else self._text(row, "user_id")

    def our_id_in(self, row: Row | None) -> str | None:
        """Return Headwater's id of the subject in a row, or None."""
        return None if row is None or self.our_id is None else self._text(row, self.our_id)

    def _text(self, row: Row, column: str) -> str | None:
        value = row.values[self.table.index[column]]
        return value if isinstance(value, str) else None


class LatestEvents(NamedTuple):
    """What a subject's row states about its latest events.

    Attributes:
        same: Id of the latest event of the same kind; empty if it is not known.
        opposite_ms: When the latest event of the opposite kind was sent, in Unix milliseconds; None
            if there was none.
    """

    same: str = ""
    opposite_ms: int | None = None


class AfterWipe(StrEnum):
    """What becomes of a delivery that names a wiped user, for some time after the wipe.

    It is skipped, or accepted, or it ends that time because the user has come back.
    """

    SKIPPED = "skipped"
    ACCEPTED = "accepted"
    COMES_BACK = "comes_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    """What applies to a delivery that has no subject, and may name its user alone.

    Attributes:
        table: Table of what it may be about. One that names a wiped user is accepted if it was sent
            after the wipe and the user has a row there, which is newer than the wipe.
        reason: Why a delivery is skipped that names no user either; None if it is a dead letter.
    """

    table: Table
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryType(Generic[P]):
    """One type of deliveries: how it is decoded, and which rows it fills.

    A type with a `lookup` waits until the lookup has its user. A type that fills that lookup is
    processed under the subject, and its other rows belong to the user.

    Attributes:
        decode: Decodes a body; raises MalformedPayload.
        normalize: Takes the delivery, the id of the owner of its rows and the payload; fills only
            `tables`.
        of_user: Whether the owner is the user; otherwise it is the subject.
        skips: Returns why a delivery is skipped for every owner, or None.
        starts: Returns the effects of a delivery that fills its lookup, from the subject's row
            before and after it. It has to return the same when the delivery is processed again.
        other_subject: Returns a second subject; the delivery changes its row of the lookup.
        latest: Returns the latest events of the subject from its row of the lookup. With it, equal
            bytes are another event if an opposite one happened in between; without it, a copy.
        after_wipe: What becomes of it if its user was wiped.
        unnamed: What applies to a delivery that names no subject, if it need not have one.
        version: To be increased with every change of the result; rows store it.
    """

    decode: Callable[[bytes], P]
    normalize: Callable[[WebhookAdmitted, str, P], NormalizeResult]
    tables: tuple[Table, ...]
    of_user: bool = True
    lookup: Lookup | None = None
    skips: Callable[[P], str | None] | None = None
    starts: Callable[[WebhookAdmitted, Row | None, Row], tuple[Effect, ...]] | None = None
    other_subject: Callable[[P], str | None] | None = None
    latest: Callable[[Row | None], LatestEvents] | None = None
    after_wipe: AfterWipe = AfterWipe.SKIPPED
    unnamed: Unnamed | None = None
    version: int = 1
    fills_lookup: bool = field(init=False)

    def __post_init__(self) -> None:
        """Determine whether it fills its own lookup."""
        fills = self.lookup is not None and self.lookup.table in self.tables
        object.__setattr__(self, "fills_lookup", fills)

    def payload(self, body: bytes) -> P:
        """Decode a body.

        Raises:
            MalformedPayload: Also for parser errors that `decode` does not handle, and for a body
                that would take seconds to parse.
        """
        try:
            check_numbers(body)
            return self.decode(body)
        except PARSE_ERRORS as error:
            raise MalformedPayload(f"expected a readable body, found: {error}") from error

    def owns(self, table: Table) -> bool:
        """Return whether the owner of a delivery has the rows that it fills of a table.

        The owner is the user, or the subject if `of_user` is false. The rows of a lookup are the
        subject's.
        """
        return table.owner is (Owner.USER if self.of_user else Owner.SUBJECT)

    def skip_reason(self, body: bytes) -> str | None:
        """Return why a delivery is skipped for every owner, or None.

        Raises:
            MalformedPayload: The body cannot be decoded.
        """
        return None if self.skips is None else self.skips(self.payload(body))

    def subjects_of(self, event: WebhookAdmitted) -> tuple[str, ...]:
        """Return the subjects of the lookup rows that a delivery changes.

        Raises:
            MalformedPayload: The body cannot be decoded.
        """
        if self.other_subject is None:
            return (event.subject,)
        other = self.other_subject(self.payload(event.body))
        return (event.subject,) if other is None else (event.subject, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A sender of webhooks.

    Deliveries are posted to /webhooks/<name> and to `more_paths`. A provider without a `scheme`
    receives no webhooks: Headwater publishes its deliveries, so their references are user ids.

    Attributes:
        read: Routes a verified body, with its `headers` by lowercase name; or MalformedPayload.
        type_header: Header of `headers` that contains the type of a delivery, if any.
        type_in_body: Whether the type is in the body: one of unknown type has to be JSON.
        ranges: Paths of numbers whose plausible ranges the sources file may replace.
        with_ranges: Returns the provider with other ranges, by path: lowest and highest value.
        skipped: Types that are known and fill nothing.
        silent_after_days: Days without data of silent connections, by maker.
        domain: Reversed domain of the sender, such as com.github, for CloudEvents; or empty.

    Raises:
        ValueError: The declaration contradicts itself.
    """

    name: str
    scheme: SignatureScheme | None
    read: Callable[[bytes, Mapping[str, str]], Routing | Malformed]
    types: Mapping[str, DeliveryType[Any]]
    skipped: frozenset[str] = frozenset()
    headers: tuple[str, ...] = ()
    type_header: str | None = None
    type_in_body: bool = False
    more_paths: tuple[str, ...] = ()
    ranges: frozenset[str] = frozenset()
    with_ranges: "Callable[[Mapping[str, tuple[float, float]]], Provider] | None" = None
    silent_after_days: Mapping[str, int] = field(default_factory=dict)
    domain: str = ""

    def __post_init__(self) -> None:
        """Reject an invalid declaration."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"expected a name such as my-provider, found {self.name!r}")
        invalid = [path for path in self.more_paths if not _PATH.fullmatch(path)]
        if invalid:
            raise ValueError(f"{self.name}: expected paths that begin with /, found {invalid}")
        if self.type_header is not None and self.type_header not in self.headers:
            raise ValueError(f"{self.name}: expected {self.type_header} among the headers it reads")
        if both := self.skipped & self.types.keys():
            raise ValueError(f"{self.name}: expected each type once, found {sorted(both)} twice")

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths to which its deliveries are posted."""
        return () if self.scheme is None else (f"/webhooks/{self.name}", *self.more_paths)

    def normalize(self, event: WebhookAdmitted) -> NormalizeResult:
        """Normalize a delivery.

        Returns:
            Rows, or why there are none. An unknown type is skipped, even without an owner. Failed
            becomes a dead letter, with a code and the position.

        Raises:
            MalformedPayload: The body cannot be decoded.
        """
        kind = self.types.get(event.type)
        if kind is None:
            return self._without_type(event)
        payload = kind.payload(event.body)
        reason = None if kind.skips is None else kind.skips(payload)
        if reason is not None:
            return Skipped(reason)
        owner = event.user_id if kind.of_user else event.subject
        if not owner:
            return Failed(NO_USER, "expected a delivery whose user or subject is known, found none")
        unfit = time_problem("sent_at_ms", event.sent_at_ms)
        result = Failed(UNFIT_VALUE, unfit) if unfit else kind.normalize(event, owner, payload)
        for update in updates_of(result):
            if update.table not in kind.tables:
                return Failed(UNDECLARED_TABLE, _undeclared(self.name, event, update.table))
            problem = update_problem(update)
            if problem is not None:
                return Failed(UNFIT_VALUE, problem)
        return result if isinstance(result, Failed) else _with_version(kind.version, result)

    def route(self, body: bytes, headers: Mapping[str, str]) -> Routing | Malformed:
        """Return the routing of a verified body, or why it has none. Never raises."""
        try:
            routing = self.read(body, headers)
            if self.type_in_body and isinstance(routing, Routing) and routing.type == UNKNOWN:
                check_json(body)
        except MalformedPayload as error:
            return Malformed(*(_not_text(body) or (MALFORMED, error.message)))
        except Exception as error:  # noqa: BLE001 (a provider's bug must not lose a delivery)
            detail = f"expected a readable body, found: {error!r:.200}"
            return Malformed(*(_not_text(body) or (MALFORMED, detail)))
        return routing

    def route_again(self, delivery: Delivery) -> Routing | Malformed:
        """Return the routing of an unreadable delivery today, or why it has none."""
        names, values = delivery.headers[::2], delivery.headers[1::2]
        return self.route(delivery.body, dict(zip(names, values, strict=True)))

    def _without_type(self, event: WebhookAdmitted) -> Failed | Skipped:
        """Return why a delivery of unknown type is skipped, or why its body is unreadable."""
        if event.type == UNREADABLE:
            routing = self.route_again(event)
            if isinstance(routing, Malformed):
                return Failed(routing.code, routing.detail)
        if not self.types:
            return Skipped(NO_NORMALIZER)
        return Skipped(event.type if event.type in self.skipped else f"unknown_type:{event.type}")


#: Providers by name, which is the source of their deliveries.
Providers: TypeAlias = Mapping[str, Provider]


def reroute(delivery: WebhookReceived, providers: Providers) -> WebhookReceived:
    """Route an unreadable delivery again: its provider may have been fixed since."""
    if delivery.type != UNREADABLE or delivery.source not in providers:
        return delivery
    routing = providers[delivery.source].route_again(delivery)
    if isinstance(routing, Malformed):
        return delivery
    return replace(
        delivery,
        type=routing.type,
        subject=routing.subject,
        reference=routing.reference,
        updated_at_ms=routing.updated_at_ms,
        sent_at_ms=sent_at_ms(delivery.sent_at_ms, routing.ordered_ms),
    )


def catalogue_of(providers: Iterable[Provider]) -> Providers:
    """Return providers by name.

    Raises:
        ValueError: Two have the same name or path, or a provider would fill rows of a table that
            it does not own.
    """
    unique = tuple(providers)
    _refuse_duplicates("name", [provider.name for provider in unique])
    _refuse_duplicates("path", [path for provider in unique for path in provider.paths])
    for provider in unique:
        for type_, kind in provider.types.items():
            owner = Owner.USER if kind.of_user else Owner.SUBJECT
            filled = kind.lookup.table if kind.lookup and kind.fills_lookup else None
            for table in kind.tables:
                expected = Owner.SUBJECT if table is filled else owner
                if table.owner is not expected:
                    raise ValueError(
                        f"{provider.name}, {type_}: expected a table whose rows belong to a "
                        f"{expected}, found {table.name}, whose rows belong to a {table.owner}"
                    )
    return {provider.name: provider for provider in unique}


def check_json(body: bytes) -> None:
    """Check the syntax of a body in linear time; builds no values.

    Raises:
        MalformedPayload: It is not JSON.
    """
    try:
        body.decode()
        json.decode(body, type=Raw)
    except PARSE_ERRORS as error:
        raise MalformedPayload(f"expected JSON, found {excerpt(body)}: {error}") from error


def _not_text(body: bytes) -> tuple[str, str] | None:
    """Return code and detail of a body that is not text; None for a text."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return UNDECODABLE, f"expected text in UTF-8, found another byte at {error.start}"
    return None


def _with_version(version: int, result: Normalized | Skipped) -> Normalized | Skipped:
    """Return the result with the normalizer's version in the stamps of its rows."""
    if version == _FIRST_VERSION:
        return result
    updates = tuple(
        replace(update, stamp=replace(update.stamp, version=version)) for update in result.updates
    )
    return replace(result, updates=updates)


def _undeclared(name: str, event: WebhookAdmitted, table: Table) -> str:
    return (
        f"expected rows of the tables that {name} declares for {event.type}, found one of "
        f"{table.name}, which would have no owner"
    )


def _refuse_duplicates(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"expected each {what} of a provider once, found {', '.join(twice)} twice")


# -- lookups

#: The user of a Terra connection.
CONNECTION: Final = Lookup(
    table=CONNECTIONS,
    missing="no_connection_for_terra_user",
    expected="a connection of the Terra user",
    cure="connect the user, then replay",
)

#: The user and the upload of a Terra lab report.
LAB_UPLOAD: Final = Lookup(
    table=TERRA_LAB_UPLOADS,
    our_id="upload_id",
    missing="no_lab_upload_for_upload_id",
    expected="a lab upload that Terra calls",
    cure="find out who gave the report to Terra; one that was uploaded here is found, so replay it",
)


# -- owners


class Recurrence(NamedTuple):
    """How an event that may recur is identified.

    Attributes:
        same_bytes: The id that the delivery would have without its time.
        has_own_time: Whether its id has the provider's time, which alone distinguishes events.
    """

    same_bytes: str
    has_own_time: bool


class Placement(NamedTuple):
    """What determines the owner of a delivery: equal in all gateways and workers of a system.

    One worker owns all rows of one key. A delivery that is appended to its owner's partition is
    processed in one step, by the worker that reads it, so the gateway determines the owner before
    it appends. Copies of a delivery have the same owner, and end up in one partition.

    Most types fill rows of a user. The delivery names that user itself (its reference is a user
    id), or a lookup returns it: a table, filled by other deliveries, with the subject as key.
    """

    providers: Providers
    user_prefix: str

    def kind_of(self, delivery: Delivery) -> DeliveryType[Any] | None:
        """Return the type of a delivery; None if no provider here declares it."""
        provider = self.providers.get(delivery.source)
        return None if provider is None else provider.types.get(delivery.type)

    def recurrence_of(self, delivery: Delivery) -> Recurrence | None:
        """Return how a delivery is identified if it is an event that may recur; None otherwise."""
        kind = self.kind_of(delivery)
        if kind is None or kind.latest is None:
            return None
        parts = (delivery.source, delivery.type, delivery.subject, delivery.body)
        signed = event_id(*parts, occurrence_of(delivery.sent_at_ms, 0))
        return Recurrence(event_id(*parts), has_own_time=delivery.event_id != signed)

    def user_of(self, delivery: Delivery) -> str | None:
        """Return the user that a delivery names, or None."""
        provider = self.providers.get(delivery.source)
        if provider is not None and provider.scheme is None:
            return delivery.reference
        return user_of(delivery.reference, self.user_prefix)

    def owner_of(self, delivery: Delivery) -> str:
        """Return the key of the partition that a delivery belongs to.

        This is the subject if the delivery fills a lookup or is not about a user; otherwise the
        user that it names, otherwise the subject. Without either it is the delivery's own id.
        """
        kind = self.kind_of(delivery)
        if kind is None or (kind.of_user and not kind.fills_lookup):
            user = self.user_of(delivery)
            return user or delivery.subject or delivery.event_id
        return delivery.subject or delivery.event_id
