"""The page at /, and the security headers of all responses."""

from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import Final

import msgspec
from litestar.types import Receive, Scope, Send

#: Pages load only from this origin and cannot be framed. The API viewer sets inline styles.
SECURITY_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "content-security-policy": "default-src 'none'; script-src 'self'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
)

#: Links on the page at /.
LINKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "/console": "Inspect and operate the system: sign in with the operators' key.",
        "/schema/swagger": "Try the API: authorize with your keys, and send requests.",
        "/schema/openapi.json": "Description of the API, OpenAPI 3.1.",
        "/asyncapi.json": "The topics and their records, AsyncAPI 3.0.",
        "/health/ready": "Readiness: are deliveries accepted?",
        "/metrics": "Metrics for Prometheus.",
        "/registry/subjects": "The schemas of all records, for Kafka viewers.",
    }
)

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headwater</title>
<link rel="icon" href="data:,">
<style>body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; }}</style>
</head>
<body>
<h1>Headwater {version}</h1>
<p>Signed webhooks in, typed rows out; durable workflows.</p>
<ul>
{links}
</ul>
<p>Deliveries are posted to {sources}.</p>
</body>
</html>
"""


def wants_html(accept: str) -> bool:
    """Whether the client is a browser."""
    return "text/html" in accept


class Home:
    """The page at /: HTML for browsers, JSON for other clients."""

    def __init__(self, version: str, paths: tuple[str, ...]) -> None:
        links = "\n".join(
            f'<li><a href="{path}">{path}</a>: {escape(text)}</li>' for path, text in LINKS.items()
        )
        sources = ", ".join(f"<code>{escape(path)}</code>" for path in paths)
        self._html = _PAGE.format(version=version, links=links, sources=sources).encode()
        self._json = msgspec.json.encode(
            {"name": "Headwater", "version": version, "links": dict(LINKS), "sources": paths}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; Litestar's before_send adds the other headers."""
        del receive
        accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
        html = wants_html(accept.decode("latin-1"))
        body = self._html if html else self._json
        media_type = b"text/html; charset=utf-8" if html else b"application/json"
        answer = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send({"type": "http.response.body", "body": body, "more_body": False})
