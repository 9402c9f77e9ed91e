"""`headwater trace export`: pages of spans become requests of OTLP, sent to a real receiver."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from typing_extensions import override

from headwater.gateway.cli import trace_export
from headwater.gateway.cli.api import CliEnvironment
from headwater.gateway.cli.main import cli

TRACE = "5f1d7a84b2c9e03f6a1b8d7c4e2f9a60"


def span(number: int, **more: object) -> dict[str, Any]:
    known = {
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "name": "process webhooks",
        "kind": "consumer",
        "start_us": 1_790_000_000_000_000,
        "end_us": 1_790_000_000_004_000,
    }
    return {**known, **more}


PAGES = {
    None: {"spans": [span(1, parent_id="b7ad6b7169203331", attributes={"rows": 2})], "cursor": "a"},
    "a": {"spans": [], "cursor": "b"},
    "b": {
        "spans": [
            span(2, error="malformed_payload", links=[{"trace_id": TRACE, "span_id": f"{1:016x}"}]),
            span(3, name="run order", kind="internal", attributes={"headwater.workflow": "order"}),
        ],
        "cursor": None,
    },
}


class Gateway:
    """Answers with pages of spans."""

    def __init__(self) -> None:
        self.requests: list[httpx2.URL] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request.url)
        return httpx2.Response(200, json=PAGES[request.url.params.get("after")])


class Receiver(ThreadingHTTPServer):
    """A small receiver of OTLP/HTTP in JSON; it refuses the first requests as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        self.refusals: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.received: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[dict[str, Any]]:
        return [
            each
            for request in self.received
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for each in scope["spans"]
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = self.server.refusals.pop(0) if self.server.refusals else 200
        if status == 200:
            assert self.path == "/v1/traces"
            assert self.headers["content-type"] == "application/json"
            self.server.headers.append(dict(self.headers.items()))
            self.server.received.append(json.loads(body))
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def export(gateway: Gateway, *arguments: str, **variables: str) -> Result:
    environment = CliEnvironment(network=httpx2.MockTransport(gateway))
    return CliRunner().invoke(
        cli, ["trace", "export", *arguments], obj=environment, env=dict(variables)
    )


def test_all_pages_are_sent_with_the_same_ids_each_time(receiver: Receiver):
    gateway = Gateway()
    result = export(
        gateway,
        *("--since", "1h", "--to", receiver.url),
        OTEL_EXPORTER_OTLP_HEADERS="x-team=data%20x, api-key=k",
        OTEL_SERVICE_NAME="shop",
    )
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert f"Sent 3 spans to {receiver.url}/v1/traces." in result.stderr
    first = receiver.spans()
    assert [(one["traceId"], one["spanId"]) for one in first] == [
        (TRACE, f"{number:016x}") for number in (1, 2, 3)
    ]
    assert first[0] == {
        "traceId": TRACE,
        "spanId": f"{1:016x}",
        "parentSpanId": "b7ad6b7169203331",
        "name": "process webhooks",
        "kind": 5,
        "startTimeUnixNano": "1790000000000000000",
        "endTimeUnixNano": "1790000000004000000",
        "attributes": [{"key": "rows", "value": {"intValue": "2"}}],
        "links": [],
    }
    assert first[1]["status"] == {"code": 2, "message": "malformed_payload"}
    assert first[1]["links"] == [{"traceId": TRACE, "spanId": f"{1:016x}"}]
    (resource,) = receiver.received[0]["resourceSpans"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "shop"}}
    ]
    assert receiver.headers[0]["x-team"] == "data x"
    assert receiver.headers[0]["api-key"] == "k"
    times = {(url.params["since"], url.params["until"]) for url in gateway.requests}
    assert len(times) == 1, "every page is of the same time"
    receiver.received.clear()
    export(Gateway(), "--since", "2h", "--to", f"{receiver.url}/v1/traces")
    assert receiver.spans() == first


def test_a_busy_receiver_is_tried_again(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(trace_export.time, "sleep", pauses.append)
    receiver.refusals = [503, 429]
    result = export(Gateway(), "--since", "1h", "--to", receiver.url)
    assert (result.exit_code, len(receiver.spans()), pauses) == (0, 3, [1.0, 2.0])
    receiver.refusals = [400]
    result = export(Gateway(), "--since", "1h", "--to", receiver.url)
    assert result.exit_code == 1
    assert "found 400" in str(result.output)
    assert pauses == [1.0, 2.0]


def test_without_a_receiver_requests_are_lines():
    result = export(Gateway(), "--since", "2026-07-01T00:00:00Z", "--until", "2026-07-02T00:00:00Z")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(line["resourceSpans"][0]["scopeSpans"][0]["spans"]) for line in lines] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--since", "yesterday"), "--since: expected RFC 3339, or a duration such as 1h"),
        (("--since", "1h", "--to", "ftp://x"), "--to: expected a URL of http or https"),
        ((), "Missing option '--since'"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], problem: str):
    assert problem in export(Gateway(), *arguments).output


def test_an_id_after_trace_shows_it_as_before():
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.params["request_id"] == "r-1"
        return httpx2.Response(200, json={"traces": []})

    environment = CliEnvironment(network=httpx2.MockTransport(answer))
    for command in (["trace", "r-1"], ["trace", "show", "r-1"], ["trace", "--json", "r-1"]):
        result = CliRunner().invoke(cli, command, obj=environment)
        assert "no delivery with the request id r-1 is known" in result.output
