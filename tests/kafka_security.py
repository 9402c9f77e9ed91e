"""A broker with listeners of every security that clients may have to speak, and their tokens."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import trustme
from cryptography.hazmat.primitives import serialization

from headwater.streams.kafka.embedded import Access, EmbeddedKafka, Listener

USER = "headwater"
PASSWORD = "a pass=word"
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_SECURITY = "org.apache.kafka.common.security"


@dataclass
class Certificates:
    """What a test's brokers and clients show each other; every property is a file."""

    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)

    @property
    def ca(self) -> str:
        return self._file("ca.pem", self.authority.cert_pem.bytes())

    @property
    def foreign_ca(self) -> str:
        return self._file("foreign.pem", trustme.CA().cert_pem.bytes())

    @property
    def broker(self) -> str:
        return self._pair("broker", self.authority.issue_cert("127.0.0.1"))

    @property
    def expired(self) -> str:
        leaf = self.authority.issue_cert("127.0.0.1", not_before=_LONG_AGO, not_after=_LONG_AGO)
        return self._pair("expired", leaf)

    @property
    def elsewhere(self) -> str:
        return self._pair("elsewhere", self.authority.issue_cert("kafka.example"))

    @property
    def client(self) -> str:
        return self._pair("client", self.authority.issue_cert("headwater.example"))

    def _pair(self, name: str, leaf: trustme.LeafCert) -> str:
        """A key, as Kafka reads it, and its certificate, in one file."""
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._file(f"{name}.pem", pem + b"".join(c.bytes() for c in leaf.cert_chain_pems))

    def _file(self, name: str, content: bytes) -> str:
        file = self.directory / name
        file.write_bytes(content)
        return str(file)


def secured_broker(directory: Path, certificates: Certificates) -> EmbeddedKafka:
    """A broker whose listeners are TLS, MTLS, SASL, SASL_TLS, EXPIRED and ELSEWHERE."""

    def tls(pair: str, **more: str) -> dict[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": pair,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates.ca,
        } | more

    plain = f'{_SECURITY}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    oauth = (
        f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    )
    sasl = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "plain.sasl.jaas.config": plain,
        "scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        "scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": oauth,
    }
    listeners = [
        Listener("TLS", "SSL", tls(certificates.broker)),
        Listener("MTLS", "SSL", tls(certificates.broker, **{"ssl.client.auth": "required"})),
        Listener("EXPIRED", "SSL", tls(certificates.expired)),
        Listener("ELSEWHERE", "SSL", tls(certificates.elsewhere)),
        Listener("SASL", "SASL_PLAINTEXT", sasl),
        Listener("SASL_TLS", "SASL_SSL", tls(certificates.broker) | sasl),
    ]
    access = Access(listeners, {USER: PASSWORD})
    return EmbeddedKafka(directory, port=0, report=print, access=access)


def unsigned_token(lifetime_s: float, subject: str = USER) -> str:
    """A token that brokers take which check no signature."""
    now = time.time()

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + lifetime_s})}."


class TokenEndpoint(ThreadingHTTPServer):
    """An OIDC provider's token endpoint."""

    def __init__(self, lifetime_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Token)
        self.lifetime_s = lifetime_s
        self.asked: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"


class _Token(BaseHTTPRequestHandler):
    server: TokenEndpoint

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        self.server.asked.append(form)
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers["authorization"] != f"Basic {login}":
            self._answer(401, {"error": "invalid_client"})
            return
        lifetime_s = self.server.lifetime_s
        self._answer(
            200, {"access_token": unsigned_token(lifetime_s), "expires_in": int(lifetime_s)}
        )

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def token_endpoint(lifetime_s: float = 3600) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(lifetime_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
