"""Templates to pages: how moments, values and sizes are shown, and the headers of every page."""

import json
import re
import shlex
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from typing import Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Response

from headwater.gateway.paths import path
from headwater.schemas.errors import PARSE_ERRORS

#: Characters of a value that a page shows; all of it is where the page's request says.
SHOWN_CHARS: Final = 20_000
#: What no page shows of bytes that are not text: an Avro record has its texts between such.
_UNREADABLE: Final = re.compile(r"[\0-\x08\x0e-\x1f\x7f\ufffd]")
_JSON: Final = msgspec.json.Encoder(decimal_format="number")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

STYLE: Final = files(__package__).joinpath("console.css").read_bytes()
STYLE_VERSION: Final = sha256(STYLE).hexdigest()[:12]
#: No scripts at all; forms are sent to this gateway.
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
#: Of a drawing, which has its styles within it. By itself it is a document, of names that are
#: the authors'.
PICTURE_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox",
    "cache-control": "no-store",
}


def moment(text: str) -> datetime:
    """A moment of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def clock_time(text: str) -> str:
    """A moment, in UTC, to the second."""
    return f"{moment(text):%Y-%m-%d %H:%M:%S}"


def from_ms(at_ms: int) -> str:
    """A moment that is given in Unix milliseconds, as `clock_time` shows it."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def age(text: str, now: datetime) -> str:
    """How long ago a moment was, or when it will be, in its largest unit."""
    seconds = (now - moment(text)).total_seconds()
    away = " ".join(lasting(abs(seconds)).split()[:2])
    return f"{away} ago" if seconds >= 0 else f"in {away}"


def lasting(seconds: float) -> str:
    """How long something took, or is away, in its largest units."""
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
    """A value as JSON, indented, its numbers as they were written."""
    try:
        return _short(msgspec.json.format(_JSON.encode(value), indent=2).decode())
    except (ValueError, TypeError):  # Half characters are JSON, and not msgspec's.
        return _short(json.dumps(value, indent=2, default=str))


def readable(base64: str | None) -> str:
    """Bytes in base64 as one reads them: JSON indented, anything else as text, with dots in it."""
    content = b64decode(base64 or "")
    try:
        return _short(msgspec.json.format(content, indent=2).decode())
    except PARSE_ERRORS:
        text = content.decode(errors="replace")
    return _short(_UNREADABLE.sub("·", text))


def _short(text: str) -> str:
    left = len(text) - SHOWN_CHARS
    return text if left <= 0 else f"{text[:SHOWN_CHARS]}\n… and {left} characters more"


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("headwater.gateway.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "age": age,
        "clock_time": clock_time,
        "from_ms": from_ms,
        "lasting": lasting,
        "pretty": pretty,
        "quoted": shlex.quote,
        "readable": readable,
    }
    found.globals |= {"path": path, "style_version": STYLE_VERSION}
    return found


_TEMPLATES: Final = _environment()


def page(template: str, status: int = 200, **values: object) -> Response[bytes]:
    """A page."""
    text = _TEMPLATES.get_template(template).render(values)
    # What a sender made up may have half characters, which no page can hold.
    return Response(
        text.encode(errors="replace"),
        status_code=status,
        media_type="text/html",
        headers=HEADERS,
    )


def redirect(to: str) -> Response[bytes]:
    """Sends a browser on to another page of the console, which it asks for by GET."""
    return Response(
        b"", status_code=303, media_type="text/html", headers={**HEADERS, "location": to}
    )
