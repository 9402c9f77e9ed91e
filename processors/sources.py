"""Sources of deliveries, as operators write them in a TOML file, and the handshakes of producers.

    [[source]]
    name = "shop"                   # its deliveries are posted to /webhooks/shop
    scheme = "shopify"              # or a table [source.scheme] with a custom scheme
    secret_env = "SHOP_SECRET"      # or secret_file, or secrets = ["…"] for development
    paths = ["/hooks/shop"]         # further paths
    type = "x-shopify-topic"        # a header, or a JSON pointer into the body: "/type"
    subject = "/id"

    [[source]]
    name = "terra"
    provider = "terra"              # parses and normalizes them; without one they are recorded
    [source.ranges]                 # other plausible ranges for some of the provider's numbers
    "heart_rate_data.summary.resting_hr_bpm" = [25, 220]
    [source.silent_after_days]      # when a connection without new data is silent
    withings = 14
    default = 3

A source of `kind = "kafka"` is a topic of another program (`kafka_sources`).

`every_provider = true`, above the tables, adds a source for every provider that no source names.
The file states where the secrets are; only the gateway reads them.

Handshakes are signed like deliveries, so they are answered after verification, and not processed
further. Sources: Slack's `url_verification`; GitHub's `ping`. Terra, Stripe, Shopify and Standard
Webhooks document none.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headwater.processors.kafka_sources import KafkaSource, WrittenTopic, source_of_topic
from headwater.processors.providers.generic import generic_provider
from headwater.processors.providers.headwater import HEADWATER
from headwater.processors.providers.provider import Provider, Providers
from headwater.processors.signature_schemes import SCHEMES, Encoding, HeaderForm, SignatureScheme
from headwater.processors.toml_tables import read_fields
from headwater.schemas.errors import PARSE_ERRORS, Disposition, HeadwaterError

#: Takes a verified body and those headers of the handshake that were sent; returns the response
#: body, or None for a delivery.
Handshake: TypeAlias = Callable[[bytes, Mapping[str, str]], str | None]

#: GitHub's header that names the event.
GITHUB_EVENT: Final = "x-github-event"


class _Verification(msgspec.Struct, frozen=True):
    type: str = ""
    challenge: str = ""


def slack(body: bytes, headers: Mapping[str, str]) -> str | None:
    """Return the challenge that Slack sends."""
    del headers
    if b"url_verification" not in body:
        return None
    try:
        verification = msgspec.json.decode(body, type=_Verification)
    except PARSE_ERRORS:
        return None
    return verification.challenge if verification.type == "url_verification" else None


def github(body: bytes, headers: Mapping[str, str]) -> str | None:
    """Respond to GitHub's ping; any successful response is accepted."""
    del body
    return "pong" if headers.get(GITHUB_EVENT) == "ping" else None


#: Handshakes by signature scheme.
HANDSHAKES: Final[Mapping[str, Handshake]] = MappingProxyType({"slack": slack, "github": github})


# -- sources

#: Where producers of a scheme put the type of a delivery, unless the file overrides it.
_TYPE_AT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "github": GITHUB_EVENT,
        "shopify": "x-shopify-topic",
        "slack": "/event/type",
        "standard-webhooks": "/type",
        "stripe": "/type",
        "svix": "/type",
    }
)
#: Headwater's own paths, which no source may use.
_RESERVED_PATH: Final = re.compile(r"/(admin|api|health|metrics|registry|schema|v1|webhooks)(/.*)?")
_NAME: Final = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PATH: Final = re.compile(r"/[!-~]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SETTINGS: Final = "HEADWATER_"
#: Days; a year without data is silence for any wearable.
_SILENT_AFTER_MAX: Final = 366


class SourcesInvalid(HeadwaterError):
    """Invalid sources; one line per problem, with source and position."""

    disposition = Disposition.HALT
    code = "sources_invalid"


class _WrittenScheme(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A scheme that is written in full; see `SignatureScheme`."""

    signature_header: str
    form: HeaderForm
    label: str = ""
    template: str = "{raw}"
    time_pair: str | None = None
    time_header: str | None = None
    id_header: str | None = None
    algorithm: Literal["sha1", "sha256", "sha384", "sha512"] = "sha256"
    encoding: Encoding = Encoding.HEX
    tolerance_s: int | None = None
    secret_prefix: str | None = None


class _Written(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A source as it is written."""

    name: str
    scheme: str | _WrittenScheme | None = None
    provider: str | None = None
    secrets: list[str] = []
    secret_env: str | list[str] = []
    secret_file: str | list[str] = []
    paths: list[str] = []
    type: str | None = None
    subject: str | None = None
    kind: Literal["webhook", "kafka"] = "webhook"
    ranges: dict[str, tuple[float, float]] = {}
    silent_after_days: dict[str, int] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    every_provider: bool = False
    source: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLocations:
    """Where the signing secrets of a source are, the current one first.

    Without any location they are in the settings.

    Attributes:
        inline: The secrets themselves.
        variables: Environment variables with secrets separated by commas.
        files: Files with one secret per line.
    """

    inline: tuple[str, ...] = field(default=(), repr=False)
    variables: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.inline or self.variables or self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A configured sender of webhooks.

    Attributes:
        provider: Parses the deliveries; one without types means no provider.
        secrets: The secrets that the gateway read from `secret_locations`.
    """

    name: str
    scheme: SignatureScheme
    provider: Provider
    paths: tuple[str, ...]
    handshake: Handshake | None
    secret_locations: SecretLocations = SecretLocations()
    secrets: tuple[str, ...] = field(default=(), repr=False)


#: A configured sender of deliveries.
AnySource: TypeAlias = Source | KafkaSource


def source_of(provider: Provider) -> Source:
    """Return a provider as a source of the same name, with the provider's signature scheme.

    Raises:
        ValueError: The provider's deliveries are not received as webhooks.
    """
    return Source(
        name=provider.name,
        scheme=_scheme_of(provider),
        provider=provider,
        paths=provider.paths,
        handshake=HANDSHAKES.get(_scheme_of(provider).name),
    )


def webhook_providers(providers: Providers) -> list[Provider]:
    """Return the providers that send their deliveries as webhooks."""
    return [provider for provider in providers.values() if provider.scheme is not None]


def read_sources(text: str, providers: Providers) -> tuple[AnySource, ...]:
    """Parse a sources file.

    Raises:
        SourcesInvalid: Lists every problem of every source.
    """
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise SourcesInvalid(f"expected TOML, found: {error}") from None
    except msgspec.ValidationError as error:
        raise SourcesInvalid(f"expected [[source]] tables, found: {error}") from None
    problems: list[str] = []
    providers = {provider.name: provider for provider in webhook_providers(providers)}
    parsed = [
        _read(number, table, providers, problems) for number, table in enumerate(file.source, 1)
    ]
    sources: list[AnySource] = [source for source in parsed if source is not None]
    if file.every_provider:
        named = {source.provider.name for source in webhook_sources(sources)}
        sources += [
            source_of(provider)
            for provider in webhook_providers(providers)
            if provider.name not in named
        ]
    problems += _duplicates("name", [source.name for source in sources])
    paths = [path for source in webhook_sources(sources) for path in source.paths]
    problems += _duplicates("path", paths)
    if problems:
        raise SourcesInvalid("\n".join(problems))
    return tuple(sources)


def webhook_sources(sources: Iterable[AnySource]) -> list[Source]:
    """Return the sources whose deliveries are posted."""
    return [source for source in sources if isinstance(source, Source)]


def kafka_sources(sources: Iterable[AnySource]) -> list[KafkaSource]:
    """Return the sources that are topics of other programs."""
    return [source for source in sources if isinstance(source, KafkaSource)]


def providers_of(sources: Iterable[AnySource]) -> Providers:
    """Return the provider of every source, for the pipeline; Headwater itself is one of them."""
    return {HEADWATER.name: HEADWATER} | {source.name: source.provider for source in sources}


def silence_limits(providers: Providers) -> dict[str, dict[str, int]]:
    """Return after how many days without data a connection is silent, by source and maker."""
    return {
        source: {maker.lower(): days for maker, days in provider.silent_after_days.items()}
        for source, provider in providers.items()
        if provider.silent_after_days
    }


def _scheme_of(provider: Provider) -> SignatureScheme:
    if provider.scheme is None:
        raise ValueError(f"provider: expected one that posts deliveries, found {provider.name}")
    return provider.scheme


def _read(
    number: int, table: Mapping[str, Any], providers: Providers, all_problems: list[str]
) -> AnySource | None:
    prefix = f"source {table.get('name', number)}"
    is_topic = table.get("kind") == "kafka"
    fields, problems = read_fields(table, WrittenTopic if is_topic else _Written)
    if problems:
        all_problems += [f"{prefix}: {problem}" for problem in problems]
        return None
    if is_topic:
        topic = WrittenTopic(**fields)
        problems += [*_name_problems(topic.name), *_provider_problems(topic.provider, providers)]
        source = source_of_topic(topic, providers.get(topic.provider or ""), problems)
        all_problems += [f"{prefix}: {problem}" for problem in problems]
        return source
    written, scheme = _Written(**fields), None
    try:
        scheme = _scheme(written, providers)
    except ValueError as error:
        problems.append(str(error))
    problems += _problems(written, providers)
    all_problems += [f"{prefix}: {problem}" for problem in problems]
    return None if problems or scheme is None else _source(written, scheme, providers)


def _source(written: _Written, scheme: SignatureScheme, providers: Providers) -> Source:
    if written.provider is None:
        provider = generic_provider(
            written.name,
            scheme,
            type_at=_location(written.type or _TYPE_AT.get(scheme.name)),
            subject_at=_location(written.subject),
        )
    else:
        provider = providers[written.provider]
        if written.ranges and provider.with_ranges is not None:
            provider = provider.with_ranges(written.ranges)
        if written.silent_after_days:
            provider = replace(provider, silent_after_days=written.silent_after_days)
    historic = provider.more_paths if provider.name == written.name else ()
    return Source(
        name=written.name,
        scheme=scheme,
        provider=provider,
        paths=tuple(dict.fromkeys([f"/webhooks/{written.name}", *written.paths, *historic])),
        handshake=HANDSHAKES.get(scheme.name),
        secret_locations=SecretLocations(
            inline=tuple(written.secrets),
            variables=_several(written.secret_env),
            files=_several(written.secret_file),
        ),
    )


def _scheme(written: _Written, providers: Providers) -> SignatureScheme:
    """Return the scheme of a source.

    Raises:
        ValueError: There is none, or it is invalid.
    """
    if isinstance(written.scheme, _WrittenScheme):
        fields = msgspec.structs.asdict(written.scheme)
        for name in ("signature_header", "time_header", "id_header"):
            header = fields[name]
            if header is not None and not _HEADER.fullmatch(header):
                raise ValueError(f"scheme.{name}: expected the name of a header, found {header!r}")
            fields[name] = header and header.lower()
        return SignatureScheme(name=f"{written.name}'s own", **fields)
    if written.scheme is None:
        provider = providers.get(written.provider or "")
        if provider is None:
            raise ValueError(f"scheme: expected {_one_of(SCHEMES)}, or a table; found none")
        return _scheme_of(provider)
    if written.scheme not in SCHEMES:
        raise ValueError(f"scheme: expected {_one_of(SCHEMES)}, found {written.scheme!r}")
    return SCHEMES[written.scheme]


def _problems(written: _Written, providers: Providers) -> Iterable[str]:
    """Yield what is wrong with a source besides its scheme."""
    yield from _name_problems(written.name)
    for path in written.paths:
        if not _PATH.fullmatch(path) or "{" in path:
            yield f"paths: expected paths that begin with /, found {path!r}"
        elif _RESERVED_PATH.fullmatch(path):
            yield f"paths: expected a path that Headwater does not use itself, found {path!r}"
    for name in _several(written.secret_env):
        if name.startswith(_SETTINGS):
            yield f"secret_env: expected a name that does not begin with {_SETTINGS}, found {name}"
    yield from _provider_problems(written.provider, providers)
    yield from _range_problems(written, providers)
    for maker, days in written.silent_after_days.items():
        if not 1 <= days <= _SILENT_AFTER_MAX:
            yield (
                f"silent_after_days.{maker}: expected 1 to {_SILENT_AFTER_MAX} days, found {days}"
            )
    if written.provider is None:
        yield from _generic_problems(written)
    elif written.provider in providers and (written.type or written.subject):
        yield "expected type and subject without a provider only: it reads them itself"


def _name_problems(name: str) -> Iterable[str]:
    if not _NAME.fullmatch(name) or name == HEADWATER.name:
        yield (
            f"name: expected a name such as my-shop, and not the reserved name {HEADWATER.name}; "
            f"found {name!r}"
        )


def _provider_problems(provider: str | None, providers: Providers) -> Iterable[str]:
    if provider is not None and provider not in providers:
        yield f"provider: expected {_one_of(providers)}, found {provider!r}"


def _range_problems(written: _Written, providers: Providers) -> Iterable[str]:
    provider = providers.get(written.provider or "")
    known = frozenset() if provider is None else provider.ranges
    for path, (low, high) in written.ranges.items():
        if path not in known:
            yield f"ranges: expected {_one_of(known) if known else 'none'}, found {path!r}"
        elif low > high:
            yield f"ranges.{path}: expected the lower end first, found [{low}, {high}]"


def _generic_problems(written: _Written) -> Iterable[str]:
    if written.silent_after_days:
        yield "silent_after_days: expected none without a provider"
    if not (written.secrets or written.secret_env or written.secret_file):
        yield "expected secret_env, secret_file or secrets, found none"
    for name, location in (("type", written.type), ("subject", written.subject)):
        if location is not None and not (location.startswith("/") or _HEADER.fullmatch(location)):
            yield f"{name}: expected a header or a JSON pointer such as /type, found {location!r}"


def _location(text: str | None) -> str | None:
    return text if text is None or text.startswith("/") else text.lower()


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(sorted(names))}"


def _duplicates(what: str, names: list[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"expected each {what} once, found {name} twice" for name in twice]
