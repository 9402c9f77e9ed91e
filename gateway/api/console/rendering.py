"""Render pages: templates with filters and headers."""

import json
import re
import shlex
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Response
from markupsafe import Markup, escape

from headwater.gateway.client.requests import path
from headwater.schemas.errors import PARSE_ERRORS
from headwater.schemas.failures import NEXT_STEPS

#: Most characters of a value on a page; the request that the page names returns all of it.
SHOWN_CHARS: Final = 20_000
#: Control characters that pages replace. Avro records have them between their texts.
_UNREADABLE: Final = re.compile(r"[\0-\x08\x0e-\x1f\x7f\ufffd]")
_JSON: Final = msgspec.json.Encoder(decimal_format="number")
#: Path of the console.
BASE: Final = "/console"
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

#: Files of all pages by name, with their media types.
ASSETS: Final[Mapping[str, tuple[str, bytes]]] = {
    name: (media_type, files(__package__).joinpath(name).read_bytes())
    for name, media_type in (("console.css", "text/css"), ("console.js", "text/javascript"))
}
#: Part of the addresses of the files: a browser that has them of another release loads them again.
ASSETS_VERSION: Final = sha256(b"".join(content for _, content in ASSETS.values())).hexdigest()[:12]
#: Pages have one script, which is a file; they send requests and forms only to this gateway.
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
}
#: Headers of a picture. It has inline styles, and opened by itself it is a document with names that
#: workflow authors choose.
PICTURE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox",
    "cache-control": "no-store",
}


def moment(text: str) -> datetime:
    """Parse a time of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def clock_time(text: str) -> str:
    """Format a time of the API in UTC, to the second."""
    return f"{moment(text):%Y-%m-%d %H:%M:%S}"


def from_ms(at_ms: int) -> str:
    """Format Unix milliseconds like `clock_time`."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def age(text: str, now: datetime) -> str:
    """Format how long ago a time was, or how far ahead it is, in the largest unit."""
    seconds = (now - moment(text)).total_seconds()
    distance = " ".join(duration(abs(seconds)).split()[:2])
    return f"{distance} ago" if seconds >= 0 else f"in {distance}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for (unit, size), (smaller, part) in pairwise(_UNITS):
        if seconds >= size:
            rest = int(seconds % size // part)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.0f} s"


def pretty(value: object) -> str:
    """Format a value as indented JSON, with numbers as they were written."""
    try:
        return _short(msgspec.json.format(_JSON.encode(value), indent=2).decode())
    except (ValueError, TypeError):  # Lone surrogates are valid JSON, but msgspec refuses them.
        return _short(json.dumps(value, indent=2, default=str))


def readable(base64: str | None) -> str:
    """Decode base64 for reading."""
    return readable_bytes(b64decode(base64 or ""))


def readable_bytes(content: bytes) -> str:
    """Decode bytes for reading: JSON is indented, other text has dots for control characters."""
    try:
        return _short(msgspec.json.format(content, indent=2).decode())
    except PARSE_ERRORS:
        text = content.decode(errors="replace")
    return _short(_UNREADABLE.sub("·", text))


#: Begin of a cell of a table.
_CELL: Final = re.compile(r"<td(?=[ >])")


def labelled(cells: str, heads: Sequence[str]) -> Markup:
    """Give every cell of a row the name of its column, which a phone shows before the value."""
    names = iter(heads)

    def cell(_match: re.Match[str]) -> str:
        name = next(names, "").partition("|")[0]
        return f'<td data-label="{escape(name)}"' if name else "<td"

    # The cells were escaped by the template that made them.
    return Markup(_CELL.sub(cell, str(cells)))  # noqa: S704 (see above)


def _short(text: str) -> str:
    omitted = len(text) - SHOWN_CHARS
    return text if omitted <= 0 else f"{text[:SHOWN_CHARS]}\n… and {omitted} more characters"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("headwater.gateway.api.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age,
        "clock_time": clock_time,
        "from_ms": from_ms,
        "duration": duration,
        "labelled": labelled,
        "pretty": pretty,
        "quoted": shlex.quote,
        "readable": readable,
        "readable_bytes": readable_bytes,
    }
    environment.globals |= {
        "next_steps": NEXT_STEPS,
        "path": path,
        "assets_version": ASSETS_VERSION,
    }
    return environment


_TEMPLATES: Final = _environment()


def page(template: str, status: int = 200, **values: object) -> Response[bytes]:
    """Render a template as a response."""
    text = _TEMPLATES.get_template(template).render(values)
    # Text of senders may have lone surrogates, which UTF-8 cannot encode.
    return Response(
        text.encode(errors="replace"),
        status_code=status,
        media_type="text/html",
        headers=HEADERS,
    )


def redirect(to: str) -> Response[bytes]:
    """Redirect a browser to another page of the console with GET (303)."""
    return Response(
        b"", status_code=303, media_type="text/html", headers={**HEADERS, "location": to}
    )
