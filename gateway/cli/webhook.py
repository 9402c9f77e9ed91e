"""`headwater webhook` and `headwater sources`: sign deliveries, and explain refused ones.

No gateway is needed: sources and secrets are read as a gateway reads them.
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import examples, settings_from
from headwater.gateway.cli.results import Columns, Result, fields, prints
from headwater.gateway.client.texts import span
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings
    from headwater.processors.signature_diagnosis import Diagnosis
    from headwater.processors.sources import AnySource, Source

_SOURCES = Columns(
    ("source", "scheme", "provider", "secrets", "paths"), drops=("secrets", "scheme", "provider")
)


def _settings() -> "Settings":
    """Return the settings, with the sources of `headwater up` if no file is named."""
    from headwater.gateway.settings.sources import with_development_sources  # noqa: PLC0415 (loads more than --help needs)

    return with_development_sources(settings_from())


def _source(name: str) -> "Source":
    from headwater.gateway.settings.sources import sources_with_secrets  # noqa: PLC0415 (loads more than --help needs)

    sources = {source.name: source for source in sources_with_secrets(_settings(), os.environ)}
    if name not in sources:
        raise click.UsageError(f"--source: expected one of {', '.join(sources)}, found {name!r}")
    return sources[name]


source_option = click.option(
    "--source", "name", default="terra", show_default=True, help="The source, by its name."
)


@click.command(epilog=examples("headwater sources", "headwater sources --json"))
@prints
def sources() -> Result:
    """List the sources of deliveries: paths or topics, signature schemes and providers.

    The file that HEADWATER_SOURCES names defines them. Without one, `headwater up` has the sources
    listed here, and `headwater serve` has a source for every provider, of the same name.
    """
    from headwater.gateway.settings.sources import sources_of  # noqa: PLC0415 (loads more than --help needs)

    settings = _settings()
    rows = [
        {
            "source": source.name,
            "provider": source.provider.name if source.provider.types else None,
            **_origin(source),
        }
        for source in sources_of(settings)
    ]
    return Result(answer=rows, tables=[_SOURCES.table(rows)])


def _origin(source: "AnySource") -> dict[str, str | None]:
    """Return where the deliveries of a source come from."""
    from headwater.processors.kafka_sources import KafkaSource  # noqa: PLC0415 (loads more than --help needs)

    if isinstance(source, KafkaSource):
        topic = f"topic {source.topic}, {source.format}"
        return {"scheme": None, "secrets": None, "paths": topic}
    secrets = _secret_locations(source)
    return {"scheme": source.scheme.name, "secrets": secrets, "paths": " ".join(source.paths)}


def _no_type_header(source: "Source") -> str:
    """Explain why no header states the type of this source's deliveries."""
    expected = f"expected a source whose deliveries state it in a header, found {source.name}"
    if headers := ", ".join(source.provider.headers):
        return (
            f"{expected}; if {headers} states it, declare that with `type_header=` of the provider "
            f"{source.provider.name}"
        )
    return f"{expected}, whose bodies state it"


def _secret_locations(source: "Source") -> str:
    """Return where a source's secrets are configured, not their values."""
    from headwater.gateway.settings.settings import secrets_variable  # noqa: PLC0415 (loads more than --help needs)

    locations = source.secret_locations
    inline = [f"{len(locations.inline)} in the file"] if locations.inline else []
    if not locations:
        return secrets_variable(source.provider.name)
    return ", ".join([*inline, *locations.variables, *locations.files])


@click.group(
    cls=Group,
    epilog=examples(
        "headwater webhook sign delivery.json",
        "headwater webhook verify --headers captured.txt body.json",
    ),
)
def webhook() -> None:
    """Sign deliveries as their sources do, and find out why one was refused."""


@webhook.command(
    "sign",
    epilog=examples(
        "headwater webhook sign delivery.json",
        "headwater webhook sign --source github --type push push.json",
        "headwater webhook sign delivery.json | curl -H @- --data-binary @delivery.json \\",
        "     http://127.0.0.1:8080/webhooks/terra",
    ),
)
@click.argument("file", type=click.File("rb"))
@source_option
@click.option("--secret", help="The signing secret. Default: the source's first.")
@click.option("--type", "type_", help="Type of the delivery, if its source sends it in a header, "
              "as GitHub does. Default: example.")  # fmt: skip
@prints
def sign(file: click.utils.LazyFile, name: str, secret: str | None, type_: str | None) -> Result:
    """Print the headers that the source would send with a delivery now, a line each.

    FILE is the body, byte for byte; - reads standard input.
    """
    from headwater.processors import signatures  # noqa: PLC0415 (loads more than --help needs)

    source = _source(name)
    if secret is None and not source.secrets:
        raise click.ClickException(f"source {name}: expected a secret, found none")
    if type_ is not None and source.provider.type_header is None:
        raise click.UsageError(f"--type: {_no_type_header(source)}")
    id_ = f"msg_{secrets.token_hex(12)}"
    try:
        headers = signatures.sign(
            source.scheme, file.read(), secret or source.secrets[0], now_ms() // 1000, id_
        )
    except ValueError as error:
        raise click.UsageError(f"--secret: {error}") from error
    if source.provider.type_header is not None:
        headers[source.provider.type_header] = type_ or "example"
    lines = "".join(f"{header}: {value}\n" for header, value in headers.items())
    return Result(answer=headers, text=lines)


@webhook.command(
    "verify",
    epilog=examples(
        "headwater webhook verify --headers captured.txt body.json",
        "headwater webhook verify --source github -H 'x-hub-signature-256: sha256=…' push.json",
        "headwater webhook verify --headers captured.txt --at 2026-07-01T12:00:00Z body.json",
    ),
)
@click.argument("file", type=click.File("rb"), default="-")
@source_option
@click.option("-H", "--header", "lines", multiple=True, metavar="'NAME: VALUE'",
              help="A header of the request; may be repeated.")  # fmt: skip
# Latin-1, as servers read headers: any byte is a character.
@click.option("--headers", "listed", type=click.File("r", encoding="latin-1"),
              help="A file of headers, a line each.")  # fmt: skip
@click.option("--at", type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ"]),
              help="When the request arrived, in UTC. Default: now.")  # fmt: skip
@prints
def verify(
    file: click.utils.LazyFile,
    name: str,
    lines: tuple[str, ...],
    listed: click.utils.LazyFile | None,
    at: datetime | None,
) -> Result:
    """Show whether a captured request is accepted, and if not, why.

    FILE is the body, byte for byte; - reads standard input. Exits 1 if it is refused.

    Tries more than a gateway does: every secret of the source, and bodies that differ from this one
    by newlines or white space, as after an editor or a proxy that reformats. A captured request is
    soon stale; the other findings remain valid.
    """
    from headwater.processors.signature_diagnosis import diagnose  # noqa: PLC0415 (loads more than --help needs)

    source = _source(name)
    now_s = now_ms() / 1000 if at is None else at.replace(tzinfo=UTC).timestamp()
    headers = read_headers([*(listed or ()), *lines])
    diagnosis = diagnose(source.scheme, headers, file.read(), source.secrets, now_s)
    accepted = diagnosis.reason is None
    return Result(
        answer={"source": name, "taken": accepted, **asdict(diagnosis)},
        tables=[fields(_fields(source, headers, diagnosis))],
        hints=[_verdict(diagnosis, len(source.secrets))],
        failed=not accepted,
    )


def read_headers(lines: Iterable[str]) -> dict[str, str]:
    """Return headers by name in lower case, from lines such as `Name: value`.

    Other lines that tools write are skipped: the request's first line, `> ` of curl, blank lines.
    """
    headers = {}
    for line in lines:
        header, colon, value = line.strip().removeprefix("> ").partition(":")
        if colon and header and " " not in header:
            headers[header.lower()] = value.strip()
    return headers


def _fields(
    source: "Source", headers: dict[str, str], diagnosis: "Diagnosis"
) -> Iterator[tuple[str, Any]]:
    scheme = source.scheme
    yield from (("source", source.name), ("scheme", scheme.name), ("expected", diagnosis.expected))
    absent = [name for name in scheme.also_named if name not in headers]
    named = [name for name in scheme.header_names if name not in absent]
    for name in dict.fromkeys(named):
        yield f"found {name}", headers.get(name, "(none)")
    yield "signed", diagnosis.signed
    if diagnosis.age_s is not None:
        relation = "before" if diagnosis.age_s >= 0 else "after"
        age = f"{span(abs(diagnosis.age_s) * 1000)} {relation} the request arrived"
        yield "time", f"{age}; {scheme.tolerance_s} s are allowed"
    yield "secrets", str(len(source.secrets))
    if diagnosis.reason is not None:
        yield from (("refused", diagnosis.reason), ("because", diagnosis.detail))


def _verdict(diagnosis: "Diagnosis", secrets_: int) -> str:
    """Return the conclusion, in a sentence."""
    from headwater.processors.signatures import RefusalReason  # noqa: PLC0415 (loads more than --help needs)

    if diagnosis.reason is None:
        return f"Accepted: secret {diagnosis.secret} of {secrets_} has signed it."
    if diagnosis.body is not None:
        return (
            f"Refused. Secret {diagnosis.secret} of {secrets_} has signed {diagnosis.body}: a "
            "proxy or an editor has changed the bytes."
        )
    if diagnosis.secret is not None:
        return (
            f"Refused, though secret {diagnosis.secret} of {secrets_} has signed it: only its time "
            "is wrong. --at sets when it arrived."
        )
    if diagnosis.reason not in (RefusalReason.STALE, RefusalReason.SIGNATURE_MISMATCH):
        return f"Refused: {diagnosis.detail}"
    return (
        "Refused. No secret of the source has signed this body, or a common rewrite of it by "
        "editors and proxies: either the secret or the body is another one."
    )
