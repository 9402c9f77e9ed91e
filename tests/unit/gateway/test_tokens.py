"""Users' tokens: which ones are good, what is said of the others, and where keys come from."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.api.tokens.development import AUDIENCE as DEVELOPMENT_AUDIENCE
from headwater.gateway.api.tokens.development import NoIssuer, make_issuer, token_of
from headwater.gateway.api.tokens.key_set import KEY_SET_BYTES_MAX, KeySetInvalid, read_key_set
from headwater.gateway.api.tokens.key_source import (
    EXPIRED_AFTER_S,
    FRESH_S,
    READ_INTERVAL_S,
    KeySource,
    KeysUnavailable,
    keys_at,
)
from headwater.gateway.api.tokens.verifier import LEEWAY_S, TokenRefused, Verifier
from headwater.gateway.cli.main import cli
from headwater.gateway.settings.exposure import DEVELOPMENT_ISSUER
from tests.unit.gateway.issuer import (
    AUDIENCE,
    ISSUER,
    KEYS,
    NOW_S,
    USER,
    claims,
    jwk,
    key_set,
    token,
    unsigned,
)


class Issuer:
    """Where keys come from: counts how often it is asked, and can be away."""

    def __init__(self, document: bytes = b"") -> None:
        self.document = document or key_set()
        self.asked = 0
        self.away = False
        self.now_s = 0.0
        self.keys = KeySource(self.read, lambda: self.now_s)

    async def read(self) -> bytes:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionRefusedError("refused")
        return self.document


def verifier_of(source: Issuer, **changed: str) -> Verifier:
    named = {"issuer": ISSUER, "audience": AUDIENCE, "user_prefix": "user_", **changed}
    return Verifier(source.keys, clock=lambda: NOW_S * 1000, **named)


def user_of(text: str, source: Issuer | None = None, **changed: str) -> str:
    return asyncio.run(verifier_of(source or Issuer(), **changed).user_of(text))


def refused(text: str, source: Issuer | None = None, **changed: str) -> str:
    with pytest.raises(TokenRefused) as caught:
        user_of(text, source, **changed)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize("kid", ["", None])
def test_a_token_of_the_issuer_tells_its_user(algorithm: str, kid: str | None):
    assert user_of(token(algorithm, kid)) == USER


def hs256_by_a_public_key() -> str:
    """The old trick: what everybody may know of a key of RSA, used as a secret of HMAC."""
    pem = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = unsigned({"alg": "HS256", "kid": "RS256"}, claims()).rpartition(".")[0]
    signature = hmac.digest(pem, head.encode(), hashlib.sha256)
    return unsigned({"alg": "HS256", "kid": "RS256"}, claims(), signature)


OTHER = ed25519.Ed25519PrivateKey.generate()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a JWT"),
        ("a.b.c", "expected a JWT"),
        ("ä.ö.ü", "expected a JWT"),
        ("[" * 5000 + "..", "expected a JWT"),
        (unsigned({"kid": "x"}, {})[:-1], "expected a JWT"),
        ("x" * 9000, "at most 8192 characters"),
        (unsigned({"alg": "none"}, claims()), "alg:"),
        (unsigned({"alg": "NONE"}, claims()), "alg:"),
        (unsigned({"alg": ["EdDSA"]}, claims()), "alg:"),
        (unsigned({"alg": "EdDSA", "kid": 7}, claims()), "expected a JWT"),
        (hs256_by_a_public_key(), "alg:"),
        (token("EdDSA", "RS256"), "kid:"),
        (token(kid="unknown"), "kid:"),
        (token(key=OTHER), "signature"),
        (token()[:-4] + "AAAA", "signature"),
        (token(iss="https://other.example"), "iss:"),
        (token(iss=None), "iss:"),
        (token(aud="others"), "aud:"),
        (token(aud=None), "aud:"),
        (token(sub=None), "sub:"),
        (token(sub=7), "sub:"),
        (token(sub=""), "sub:"),
        (token(sub="amara"), "begins with user_"),
        (token(sub="user_\0"), "sub: expected no control characters"),
        (token(sub="user_" + "x" * 300), "sub: expected at most"),
        (token(exp=None), "exp:"),
        (token(exp=NOW_S - LEEWAY_S), "exp: the token has expired"),
        (token(exp=True), "exp: expected a number"),
        (token(exp="9999999999"), "exp: expected a number"),
        (token(exp=float("inf")), "exp: expected a number"),
        (token(nbf=NOW_S + LEEWAY_S + 1), "nbf: the token is not valid yet"),
        (token(nbf={}), "nbf: expected a number"),
        (token(exp=10**400), "exp: expected a number"),
        (token(exp=-(10**400)), "exp: expected a number"),
        (token(nbf=10**400), "nbf: expected a number"),
        (token(exp=1e300), "exp: expected a number"),
        (token(iat=10**400), "iat: expected a number"),
        (token(iat="now"), "iat: expected a number"),
    ],
)
def test_a_token_that_is_not_good_is_refused_with_the_reason(text: str, reason: str):
    assert reason in refused(text)


@pytest.mark.parametrize(
    "sub", ["amara", "auth0|5f7c8ec7c33c6c004bbafe82", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"]
)
def test_without_a_prefix_every_subject_is_a_user(sub: str):
    assert user_of(token(sub=sub), user_prefix="") == sub
    for odd in ("", "a\0", "x" * 300):
        assert refused(token(sub=odd), user_prefix="").startswith("sub: expected")


#: What any claim or header may be.
_ODD: list[Any] = [
    *(None, True, False, 0, -1, 2**63, 10**309, -(10**309), 10**400, 10**4000, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "x" * 5000, "\ud800", "\0", "9999999999"),
    *([], [[]], ["headwater"], [None], [1e308], {}, {"a": {}}, {"": 10**400}),
]
_CLAIMS = ("iss", "aud", "sub", "exp", "nbf", "iat", "jti", "crit", "headwater")
_HEADERS = ("alg", "kid", "typ", "crit", "b64", "jwk", "x5c", "zip")


@pytest.mark.parametrize("claim", _CLAIMS)
def test_whatever_an_issuer_signs_as_a_claim_names_the_user_or_is_refused(claim: str):
    header = {"alg": "EdDSA", "kid": "EdDSA"}
    for value in _ODD:
        said = {**claims(), claim: value}
        head = unsigned(header, said).rpartition(".")[0]
        text = unsigned(header, said, KEYS["EdDSA"].sign(head.encode()))
        with suppress(TokenRefused):
            assert user_of(text) == USER, value


@pytest.mark.parametrize("name", _HEADERS)
def test_whatever_a_header_says_its_token_names_the_user_or_is_refused(name: str):
    for value in _ODD:
        header = {"alg": "EdDSA", "kid": "EdDSA", name: value}
        head = unsigned(header, claims()).rpartition(".")[0]
        text = unsigned(header, claims(), KEYS["EdDSA"].sign(head.encode()))
        with suppress(TokenRefused):
            assert user_of(text) == USER, value
        refused(text.rpartition(".")[0] + ".")


@pytest.mark.parametrize("body", _ODD)
def test_claims_that_are_no_object_are_refused(body: object):
    header = {"alg": "EdDSA", "kid": "EdDSA"}
    head = unsigned(header, body).rpartition(".")[0]  # type: ignore[arg-type]
    refused(unsigned(header, body, KEYS["EdDSA"].sign(head.encode())))  # type: ignore[arg-type]


@given(st.text(st.sampled_from(".aAeyJ=-_{}[]\0\ud800\xff "), max_size=200))
def test_whatever_text_comes_as_a_token_is_refused(text: str):
    refused(text)


def test_clocks_may_differ_by_half_a_minute():
    assert user_of(token(exp=NOW_S - LEEWAY_S + 1, nbf=NOW_S + LEEWAY_S)) == USER


def test_one_audience_of_several_is_enough():
    assert user_of(token(aud=["others", AUDIENCE])) == USER


def test_without_an_audience_of_ours_a_token_for_somebody_is_refused():
    assert user_of(token(aud=None), audience="") == USER
    assert "aud:" in refused(token(), audience="")


def test_a_signature_that_leaves_out_the_payload_is_refused():
    headers = {"alg": "EdDSA", "kid": "EdDSA", "b64": False, "crit": ["b64"]}
    head = unsigned(headers, claims()).rpartition(".")[0]
    signature = KEYS["EdDSA"].sign(head.encode())
    refused(unsigned(headers, claims(), signature))


@pytest.mark.parametrize(
    "key",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "EdDSA", "alg": "HS256"},
        jwk("RS256", "k", rsa.generate_private_key(65537, 1024)),  # noqa: S505 (too short on purpose)
        jwk("RS256", "k", alg="RS512"),
        jwk("RS256", "k", use="enc"),
        jwk("RS256", "k", key_ops=["encrypt"]),
        jwk("ES256", "k", ec.generate_private_key(ec.SECP384R1())),
        jwk("ES256", "k", y=None),
        jwk("EdDSA", "k", crv="X25519"),
        jwk("EdDSA", "k", x="short"),
        jwk("EdDSA", "k", x="ä"),
        {"kty": 7},
        "nothing",
    ],
)
def test_keys_that_cannot_check_tokens_are_passed_over(key: object):
    good = jwk("EdDSA", "good")
    assert [item.kid for item in read_key_set(key_set(key, good))] == ["good"]


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 20_000,
        b'{"keys":' + b"[" * 20_000,
        b"",
        b"[]",
        b'{"keys": 1}',
        b"\xff",
        b" " * KEY_SET_BYTES_MAX + b" {}",
        b"<html>",
    ],
)
def test_what_is_no_jwks_is_said_to_be_none(document: bytes):
    with pytest.raises(KeySetInvalid):
        read_key_set(document)


def test_a_token_without_a_key_id_needs_one_key_that_fits():
    two = Issuer(key_set(jwk("EdDSA", "a"), jwk("EdDSA", "b", OTHER)))
    assert "kid:" in refused(token(kid=None), two)


def test_keys_are_read_once_for_many_tokens():
    async def scenario() -> None:
        issuer = Issuer()
        verifier = verifier_of(issuer)
        assert set(await asyncio.gather(*(verifier.user_of(token()) for _ in range(20)))) == {USER}
        assert issuer.asked == 1

    asyncio.run(scenario())


def test_a_new_key_is_found_when_a_token_names_it():
    async def scenario() -> None:
        issuer = Issuer()
        verifier = verifier_of(issuer)
        await verifier.user_of(token())
        issuer.document = key_set(jwk("EdDSA", "new", OTHER))
        issuer.now_s = READ_INTERVAL_S
        assert await verifier.user_of(token(kid="new", key=OTHER)) == USER
        with pytest.raises(TokenRefused):
            await verifier.user_of(token())
        assert issuer.asked == 2

    asyncio.run(scenario())


def test_tokens_with_made_up_keys_do_not_make_us_ask_again_and_again():
    async def scenario() -> None:
        issuer = Issuer()
        verifier = verifier_of(issuer)
        for number in range(50):
            with pytest.raises(TokenRefused):
                await verifier.user_of(token(kid=f"made-up-{number}"))
        assert issuer.asked == 1

    asyncio.run(scenario())


def test_while_the_issuer_is_away_known_keys_count_for_an_hour():
    async def scenario() -> None:
        issuer = Issuer()
        verifier = verifier_of(issuer)
        await verifier.user_of(token())
        issuer.away = True
        issuer.now_s = FRESH_S + 1
        assert await verifier.user_of(token()) == USER
        with pytest.raises(KeysUnavailable):
            await verifier.user_of(token(kid="perhaps-new"))
        issuer.now_s = EXPIRED_AFTER_S + 1
        with pytest.raises(KeysUnavailable, match="refused"):
            await verifier.user_of(token())
        issuer.away = False
        issuer.now_s += READ_INTERVAL_S
        assert await verifier.user_of(token()) == USER

    asyncio.run(scenario())


@pytest.mark.parametrize("away", [True, False])
def test_without_keys_nobody_can_tell_whether_a_token_is_good(away: bool):
    issuer = Issuer(b"<html>")
    issuer.away = away
    with pytest.raises(KeysUnavailable):
        user_of(token(), issuer)


@contextmanager
def served(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/jwks.json"
        server.shutdown()
        thread.join()


def source_at(address: str) -> KeySource:
    return KeySource(keys_at(address), lambda: 0.0)


def test_keys_are_read_from_a_url_and_from_a_file(tmp_path: Path):
    file = tmp_path / "jwks.json"
    file.write_bytes(key_set())
    with served(200, key_set()) as url:
        for address in (url, str(file)):
            result = asyncio.run(source_at(address).find("EdDSA", "EdDSA"))
            assert result is not None


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"{}"), (302, b""), (200, b" " * 2 * KEY_SET_BYTES_MAX)]
)
def test_a_url_that_answers_otherwise_is_away(status: int, body: bytes):
    with served(status, body) as url, pytest.raises(KeysUnavailable):
        asyncio.run(source_at(url).find("EdDSA", "EdDSA"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/", "http://[::1/", "nowhere/jwks.json"])
def test_an_address_without_keys_is_away(address: str):
    with pytest.raises(KeysUnavailable):
        asyncio.run(source_at(address).find("EdDSA", "EdDSA"))


def test_the_development_issuer_makes_its_key_once(tmp_path: Path):
    first = make_issuer(tmp_path).read_bytes()
    text = token_of(tmp_path, USER, now_s=NOW_S, lifetime_s=60)
    file = make_issuer(tmp_path)
    assert file.read_bytes() == first
    assert "d" not in json.loads(first)["keys"][0]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
    names = {"issuer": DEVELOPMENT_ISSUER, "audience": DEVELOPMENT_AUDIENCE}
    assert user_of(text, Issuer(file.read_bytes()), **names) == USER


def test_without_its_key_the_development_issuer_says_who_makes_it(tmp_path: Path):
    with pytest.raises(NoIssuer, match="headwater up"):
        token_of(tmp_path, USER, now_s=NOW_S, lifetime_s=60)


def test_the_command_prints_a_token_in_json_with_whose_it_is_and_how_long_it_is_good(
    tmp_path: Path,
):
    make_issuer(tmp_path)
    requested = ["token", USER, "--expires", "15m", "--data-dir", str(tmp_path), "--json"]
    made = CliRunner().invoke(cli, requested)
    assert made.exit_code == 0, made.output
    shown = json.loads(made.stdout)
    assert (shown["user_id"], shown["expires_in"]) == (USER, 900)
    assert shown["token"].count(".") == 2
