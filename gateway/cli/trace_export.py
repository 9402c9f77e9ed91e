"""`headwater trace`: the trace of a delivery; and the export of the spans of the past by OTLP."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
import msgspec
from typing_extensions import override

from headwater.gateway.cli.api import Api, admin_options, now
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.operate import show_trace
from headwater.gateway.cli.options import examples
from headwater.gateway.cli.output import say, say_progress
from headwater.processors.runs.durations import milliseconds

#: Rows of a page, each with one to some spans: a megabyte of JSON.
_PAGE: Final = 500
_PATH: Final = "/v1/traces"
_TIMEOUT_S: Final = 30.0
#: Attempts of a request, and the longest pause between two of them.
_ATTEMPTS: Final = 6
_PAUSE_MAX_S: Final = 30.0
#: Responses after which OTLP demands that a client sends again.
_RETRIED: Final = frozenset({429, 502, 503, 504})
_KINDS: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_FAILED: Final = 2
#: The headers of all exporters of OpenTelemetry, as name=value, separated by commas.
_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
_SERVICE: Final = "OTEL_SERVICE_NAME"


class _TraceGroup(Group):
    """A group whose default command shows a trace: `headwater trace ID`."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = next((arg for arg in args if not arg.startswith("-")), None)
        if args and named not in self.commands and not {"--help", "-h"} & set(args[:1]):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_TraceGroup,
    epilog=examples(
        "headwater trace 01JZ2Y0W8M3V9Q6T5R4E3W2Q1A",
        "headwater trace export --since 1h --to http://127.0.0.1:4318",
    ),
)
def trace() -> None:
    """Show the trace of a delivery, or export the traces of the past.

    `headwater trace REQUEST_ID` is `headwater trace show REQUEST_ID`.
    """


trace.add_command(show_trace)


@trace.command(
    "export",
    epilog=examples(
        "headwater trace export --since 1h --to http://127.0.0.1:4318",
        "headwater trace export --since 2026-07-01T00:00:00Z --until 2026-07-02T00:00:00Z > spans",
    ),
)
@click.option("--since", required=True, metavar="TIME",
              help="Beginning: RFC 3339, or how long ago, as 1h or 30m.")  # fmt: skip
@click.option("--until", metavar="TIME", help="End, in the same form; now by default.")
@click.option("--to", metavar="URL", help="OTLP/HTTP endpoint, such as http://127.0.0.1:4318.")
@admin_options
def export(since: str, until: str | None, to: str | None, api: Api) -> None:
    """Export the spans of deliveries, runs and steps of a time, all of them.

    They are computed from the log, also for a time in which nothing was traced. Their ids follow
    from it, too: exporting twice gives the same spans. Without --to, requests of OTLP in JSON are
    written to stdout, one a line. OTEL_EXPORTER_OTLP_HEADERS has headers of requests, and
    OTEL_SERVICE_NAME the name of the service.
    """
    at = now()
    begin, end = _moment("--since", since, at), _moment("--until", until or "0s", at)
    receiver = None if to is None else _Receiver(to, _headers(os.environ.get(_HEADERS, "")))
    service = os.environ.get(_SERVICE, "headwater")
    sent = 0
    for spans in _pages(api, begin, end):
        request = otlp_request(spans, service)
        if receiver is None:
            click.echo(request)
        else:
            receiver.send(request)
            sent += len(spans)
            say_progress(f"{sent} spans sent")
    if receiver is not None:
        say_progress("")
        say(f"Sent {sent} spans to {receiver.url}.")


def _pages(api: Api, since: str, until: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the spans page by page; one page is in memory at a time."""
    after = None
    while True:
        page = api.get("/admin/traces/spans", since=since, until=until, limit=_PAGE, after=after)
        if page["spans"]:
            yield page["spans"]
        after = page["cursor"]
        if after is None:
            return


def _moment(option: str, text: str, at: datetime) -> str:
    """Return a time in RFC 3339.

    Raises:
        UsageError: It is neither that nor a duration.
    """
    if "T" in text:
        return text
    try:
        ago = timedelta(milliseconds=milliseconds(text))
    except (TypeError, ValueError) as error:
        raise click.UsageError(
            f"{option}: expected RFC 3339, or a duration such as 1h, found {text[:60]!r}"
        ) from error
    return (at - ago).isoformat()


# -- OTLP


def otlp_request(spans: Iterable[Mapping[str, Any]], service: str) -> bytes:
    """Return a request of OTLP/HTTP in JSON with spans of the gateway."""
    scope = {"scope": {"name": "headwater"}, "spans": [_otlp_span(span) for span in spans]}
    resource = {"attributes": _attributes({"service.name": service})}
    return msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})


def _otlp_span(span: Mapping[str, Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        "parentSpanId": span.get("parent_id", ""),
        "name": span["name"],
        "kind": _KINDS[span.get("kind", "internal")],
        "startTimeUnixNano": f"{span['start_us']}000",
        "endTimeUnixNano": f"{span['end_us']}000",
        "attributes": _attributes(span.get("attributes", {})),
        "links": [
            {"traceId": link["trace_id"], "spanId": link["span_id"]}
            for link in span.get("links", ())
        ],
    }
    if error := span.get("error"):
        encoded["status"] = {"code": _FAILED, "message": error}
    return encoded


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        # Integers of 64 bits are texts in Protobuf's JSON.
        {
            "key": name,
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for name, value in values.items()
    ]


def _headers(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}


class _Receiver:
    """An endpoint of OTLP/HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Create a client.

        Raises:
            UsageError: The URL is invalid.
        """
        import httpx2  # noqa: PLC0415 (slow, and --help needs none)

        if urlsplit(url).scheme not in {"http", "https"}:
            raise click.UsageError(f"--to: expected a URL of http or https, found {url[:80]!r}")
        self.url = url if url.endswith(_PATH) else url.rstrip("/") + _PATH
        self._headers = {"content-type": "application/json", **headers}
        self._http = httpx2.Client(timeout=_TIMEOUT_S)
        self._error = httpx2.RequestError

    def send(self, body: bytes) -> None:
        """Send a request, and again if the receiver is busy or away.

        Raises:
            ClickException: It was not accepted.
        """
        problem = ""
        for attempt in range(_ATTEMPTS):
            pause_s = min(2.0**attempt, _PAUSE_MAX_S)
            try:
                answer = self._http.post(self.url, content=body, headers=self._headers)
            except self._error as error:
                problem = f"found no answer ({error!r})"
            else:
                if answer.is_success:
                    return
                problem = f"found {answer.status_code}: {answer.text[:200]}"
                if answer.status_code not in _RETRIED:
                    break
                wait = answer.headers.get("retry-after", "")
                pause_s = min(float(wait), _PAUSE_MAX_S) if wait.isdecimal() else pause_s
            if attempt + 1 < _ATTEMPTS:
                time.sleep(pause_s)
        raise click.ClickException(
            f"expected {self.url} to accept spans, {problem}; exporting again gives the same spans"
        )
