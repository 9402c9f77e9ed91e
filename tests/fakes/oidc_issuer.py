"""A small OpenID provider: discovery, authorize, token and keys, over HTTP."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

from typing_extensions import override

from tests.unit.gateway.issuer import key_set, token

CLIENT_ID = "headwater-console"
CLIENT_SECRET = "a secret of the console"


class Provider:
    """What the provider does; tests change it.

    Attributes:
        claims: Claims of the next id tokens, besides the usual ones.
        error: Error that the provider answers instead of a code.
        methods: How clients authenticate at the token endpoint, if it says so.
        keys_away: Whether its keys cannot be read.
        refused: Reasons why it refused requests for tokens.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.claims: dict[str, Any] = {}
        self.error = ""
        self.methods: list[str] = []
        self.keys_away = False
        self.refused: list[str] = []
        self.requests: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            **({"token_endpoint_auth_methods_supported": self.methods} if self.methods else {}),
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Where the browser is sent."""
        answer = {"state": query["state"]}
        if self.error:
            answer["error"] = self.error
        else:
            assert (query["response_type"], query["client_id"]) == ("code", CLIENT_ID)
            assert query["code_challenge_method"] == "S256"
            assert "openid" in query["scope"].split()
            answer["code"] = f"code-{len(self._codes)}"
            self._codes[answer["code"]] = query
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], account: str) -> dict[str, str] | None:
        """The tokens for a code, which is valid once."""
        secret = form.get("client_secret")
        if not self.methods:
            encoded = f"{CLIENT_ID}:{quote_plus(CLIENT_SECRET)}".encode()
            is_right = account == f"Basic {base64.b64encode(encoded).decode()}"
            secret = CLIENT_SECRET if is_right and secret is None else "another"
        query = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        problem = (
            "code" if query is None
            else "code_verifier" if challenge != query["code_challenge"]
            else "redirect_uri" if form["redirect_uri"] != query["redirect_uri"]
            else "client" if secret != CLIENT_SECRET
            else ""
        )  # fmt: skip
        if problem or query is None:
            self.refused.append(problem)
            return None
        usual = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "sub": "7",
            "nonce": query["nonce"],
            "email": "amara@example.org",
            "groups": ["sre"],
        }
        return {"id_token": token(**(usual | self.claims)), "token_type": "Bearer"}


@contextmanager
def provider() -> Iterator[Provider]:
    """Run a provider."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            running.requests.append(path)
            match path:
                case "/.well-known/openid-configuration":
                    self._send(running.discovery())
                case "/authorize":
                    self._send(None, 302, running.authorize(query))
                case "/jwks":
                    self._send(json.loads(key_set()), 503 if running.keys_away else 200)
                case _:
                    self._send(None, 404)

        def do_POST(self) -> None:
            running.requests.append(self.path)
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            tokens = running.exchange(
                dict(parse_qsl(body)), self.headers.get("authorization") or ""
            )
            self._send(tokens, 200 if tokens else 400)

        def _send(self, answer: object, status: int = 200, location: str = "") -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            if location:
                self.send_header("location", location)
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Provider(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()
