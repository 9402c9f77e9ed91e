"""What an adversary sends: values at the edges of parsers, paths, queries, headers and bodies.

Everything is drawn from a seeded generator, so a failure is met again with its seed.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import ASGIRoute, HTTPRoute

from headwater.gateway.api.request_parameters import _accepted

Headers = list[tuple[bytes, bytes]]

#: Values of a path or a query, as they are written in a URL.
WRITTEN: Final = (
    *("", "%00", "a%00b", "%ED%A0%80", "%FF%FE", "%", "%zz", "%2F", "%2E%2E%2F", "..", ".", "%25"),
    *("%0A", "%0D%0Ax-a:b", "%F0%9F%92%A9" * 300, "%C3%A9" * 2_000, "x" * 5_000, "x" * 60_000),
    *("-1", "0", "9" * 18, "9" * 19, "9" * 400, "9" * 60_000, "1e308", "1.0", "NaN", "0x1", "+1"),
    *("%D9%A3", "null", "true", "[]", "%7B%22a%22%3A1%7D", "'", "%22", "%3Cscript%3E", "$1", "*"),
    *("W3siYSI6MX1d", "W1tb" * 5_000, "=", "a%3Db", "a=b=c", "%E2%80%AE", "2026-07-01T00:00:00Z"),
    *("9999-12-31T23:59:59Z", "0001-01-01T00:00:00-23:59", "workflow-history/0@1," * 900),
)
#: JSON texts of a value; `{}` as a size is filled up to the limit of a body.
VALUES: Final = (
    *("null", "true", "0", "-1", "1.5", "1e308", "1e400", "-0", "9" * 400, "9" * 5_000, '""'),
    *('"x"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\n"', '"' + "x" * 5_000 + '"'),
    *("[]", "{}", "[[]]", '{"":0}', '{"a":1,"a":2}', "[" * 127 + "]" * 127, "[" * 200 + "]" * 200),
    *('{"a":' * 126 + "1" + "}" * 126, "[" * 5_000, "NaN", "01", "nul", "'x'", "\x00", "// x"),
    *(
        '"' + "x" * 300 + '"',
        '["a","b"]',
        '[{"a":1},{"a":2}]',
        '"' + "\\u0061" * 900 + '"',
        "1e-999",
    ),
)
#: What a body of any size is filled with, item by item.
ITEMS: Final = (
    *(b"1e308", b"1.7976931348623157e308", b"[]", b"{}", b'{"a":1}', b'{"a":1,"b":{}}', b'""'),
    *(b"[" * 120 + b"]" * 120, b'"\\u00ff"', b"9" * 4_300, b"-1e-308", b"1", b'"\\n"', b"\xc3\xa9"),
    *(
        b'"' + b"\\\\" * 50 + b'"',
        b"null",
        b'[{"":[]}]',
        b'{"a":{"b":{"c":{}}}}',
        b"0." + b"1" * 3_000,
    ),
)
#: Bodies that are no JSON, or hardly.
RAW: Final = (
    *(
        b"",
        b" ",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"{",
        b"}",
        b'{"a":',
        b"[1,]",
        b"null",
        b"[]",
    ),
    *(b'"\xff"', b'{"\xff":1}', b'"\xed\xa0\x80"', b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"a=b&c=d"),
    *(b"--x\r\n", b"&" * 9_000, b"a=%ff&b=%00&c=%zz", b"<a>", b'{"a":1}{"b":2}', b"{} x", b'"'),
)
#: Headers that are read somewhere, with values for them.
HEADERS: Final = (
    *(b"idempotency-key", b"if-match", b"last-event-id", b"prefer", b"x-request-id", b"x-run-id"),
    *(b"x-correlation-id", b"user-agent", b"x-forwarded-for", b"x-forwarded-proto", b"cookie"),
    *(b"accept", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"),
    *(b"authorization", b"x-api-key", b"x-admin-key", b"host", b"origin", b"range", b"expect"),
    *(b"x-github-event", b"x-shopify-topic", b"webhook-id", b"x-terra-ordering-timestamp"),
)
HEADER_VALUES: Final = (
    *(b"", b" ", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"x" * 300, b"x" * 40_000, b"9" * 400),
    *(b"-1", b"1.5", b"0x10", b"1e9", b"\xd9\xa3", b'"x"', b'W/"x"', b'"' + b"a" * 64 + b'"', b"*"),
    *(b"Bearer ", b"Bearer " + b"a.b.c", b"Bearer " + b"." * 9_000, b"Basic eDp5", b"bearer\tx"),
    *(b"a=b; " * 3_000, b"headwater_session=" + b"x" * 4_000, b'a="' + b"\\" * 9_000, b";" * 9_000),
    *(
        b"1.2.3.4, " * 3_000,
        b"[::1",
        b"::ffff:1.2.3.4%eth0",
        b"respond-async," * 3_000,
        b"," * 9_000,
    ),
    *(
        b"application/json; charset=utf-16",
        b"multipart/form-data; boundary=" + b"x" * 9_000,
        b"a/b;" * 3_000,
    ),
    *(
        b'multipart/form-data; boundary="',
        b"multipart/form-data; boundary=\xff",
        b"application/" + b"." * 9_000 + b"+json",
    ),
    *(
        b"text/html;q=" + b"9" * 400,
        b"*/*;q=NaN",
        b"gzip",
        b"chunked",
        b"01JZ2Y0W8M3V9Q6T5R4E3W2Q1A",
    ),
)


class Call(NamedTuple):
    """A request as a server hands it on."""

    method: str
    target: str
    headers: Headers
    body: bytes

    def __repr__(self) -> str:
        """Shortly, as failures show it."""
        headers = [(name, value[:60]) for name, value in self.headers]
        return f"{self.method} {self.target[:200]} {headers} {len(self.body)}:{self.body[:80]!r}"

    def scope(self, app: Litestar) -> dict[str, Any]:
        raw, _, query = self.target.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(raw, errors="replace"),
            "raw_path": raw.encode("latin-1", "replace"),
            "query_string": query.encode("latin-1", "replace"),
            "root_path": "",
            "headers": self.headers,
            "client": ("203.0.113.7", 40_000),
            "server": ("127.0.0.1", 8080),
            "extensions": {},
            "app": app,
            "state": {},
        }


class Target(NamedTuple):
    """A route as the application's own table has it."""

    method: str
    template: str
    queries: tuple[str, ...]
    #: Of a body that is read as a struct; None of others.
    kind: type[msgspec.Struct] | None
    #: The most bytes that a body may have; 0 where none is read.
    body_max: int
    key: Headers

    def call(self, random: Random, body: bytes = b"", odd: str = "") -> Call:
        """A call whose path, query or headers are odd, or nothing but its body."""
        parts = [self._part(part, random if odd == "path" else None) for part in self._parts()]
        query = _query(random, self.queries) if odd == "query" else self._usual_query()
        headers = [(b"host", b"127.0.0.1"), *self.key]
        if odd == "headers":
            headers = _odd_headers(random, headers)
        elif body:
            headers.append((b"content-type", b"application/json"))
            headers.append((b"content-length", str(len(body)).encode()))
        return Call(self.method, "/".join(parts) + (f"?{query}" if query else ""), headers, body)

    def _usual_query(self) -> str:
        return "app=app" if "app" in self.queries and "limit" not in self.queries else ""

    def _parts(self) -> list[str]:
        return self.template.split("/")

    @staticmethod
    def _part(part: str, random: Random | None) -> str:
        if not part.startswith("{"):
            return part
        if random is not None:
            return random.choice(WRITTEN)
        return "1" if ":int" in part else "x"

    def bodies(self, random: Random, large: bool) -> Iterator[bytes]:
        """Bodies for this route: no JSON, odd fields, and filled up to about the limit."""
        yield random.choice(RAW)
        if self.kind is not None:
            names = [field.encode_name for field in msgspec.structs.fields(self.kind)]
            for _ in range(2):
                chosen = random.sample(names, random.randint(0, len(names))) if names else []
                fields = [f'"{name}":{random.choice(VALUES)}' for name in chosen]
                if random.random() < 0.3:
                    fields.append(f'"{random.choice(WRITTEN)[:80]}":{random.choice(VALUES)}')
                yield "{{{}}}".format(",".join(fields)).encode()
        size = self.body_max - 64 if large else min(self.body_max, 60_000)
        yield filled(random, size, self.kind)
        if large:
            yield b" " * (self.body_max + 1)


def filled(random: Random, size: int, kind: type[msgspec.Struct] | None = None) -> bytes:
    """JSON of about so many bytes, of one item again and again, perhaps within a field."""
    item = random.choice(ITEMS)
    items = b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"
    match random.randrange(4):
        case 0 if kind is not None and msgspec.structs.fields(kind):
            name = random.choice(msgspec.structs.fields(kind)).encode_name
            return b'{"%s":%s}' % (name.encode(), items[: size - len(name) - 6] + b"]")
        case 1:
            return b'{"a":' * (size // 6)
        case 2:
            names = b",".join(b'"%d":%d' % (number, number) for number in range(size // 16))
            return b"{%s}" % names
        case _:
            return items


def _query(random: Random, names: Sequence[str]) -> str:
    chosen = [
        random.choice([*names, *names, "lmit", "%00", ""]) for _ in range(random.randint(1, 3))
    ]
    pairs = [f"{quote(name, safe='%')}={random.choice(WRITTEN)}" for name in chosen]
    if random.random() < 0.2:
        pairs *= random.choice([2, 40])
    return random.choice(["&", "&", "&&", ";"]).join(pairs)[:64_000]


def _odd_headers(random: Random, headers: Headers) -> Headers:
    for _ in range(random.randint(1, 3)):
        headers.insert(
            random.randint(0, len(headers)), (random.choice(HEADERS), random.choice(HEADER_VALUES))
        )
    return headers


def targets_of(
    app: Litestar, keys: dict[str, Headers], body_max: Callable[[HTTPRouteHandler], int]
) -> list[Target]:
    """Every route of an application, from its own table; a new one is among them by itself."""
    deliveries = [
        Target("POST", route.path, (), None, 10 * 1024 * 1024, [])
        for route in app.routes
        if isinstance(route, ASGIRoute)
    ]
    return deliveries + [
        _target(route, handler, str(method), keys, body_max)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in sorted(handler.http_methods)
    ]


def _target(
    route: HTTPRoute,
    handler: HTTPRouteHandler,
    method: str,
    keys: dict[str, Headers],
    body_max: Callable[[HTTPRouteHandler], int],
) -> Target:
    field = handler.parsed_data_field
    kind = None if field is None else field.annotation
    return Target(
        method=method,
        template=route.path,
        queries=tuple(_accepted(handler).queries),
        kind=kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None,
        body_max=0 if method in {"GET", "HEAD", "OPTIONS"} else body_max(handler),
        key=next((key for start, key in keys.items() if route.path.startswith(start)), []),
    )
