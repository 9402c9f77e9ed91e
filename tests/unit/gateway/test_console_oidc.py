"""Sign-in to the console with an OpenID provider, which runs as an HTTP server."""

import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from litestar.testing import TestClient

from headwater.gateway.api.authentication import STATE, WrongKeys
from headwater.gateway.api.console.oidc import OidcSignIn, role_of
from headwater.gateway.api.front import front_of
from headwater.gateway.settings.environment import SettingsInvalid, load_settings
from headwater.gateway.settings.settings import Settings
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.oidc_issuer import CLIENT_ID, CLIENT_SECRET, Provider, provider
from tests.unit.gateway.conftest import Clock
from tests.unit.gateway.issuer import NOW_S
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.test_auditing import metadata

Client = TestClient[Any]
URL = "http://127.0.0.1:8080"
CALLBACK = f"{URL}/console/oidc/callback"


class Signing:
    """A gateway with a console, and the provider of its people."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.audit = MemoryAudit()
        self.clock = Clock()
        settings = Settings(
            oidc_issuer=provider.url,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=CLIENT_SECRET,
            oidc_redirect_url=CALLBACK,
            oidc_roles="sre=operator, platform=admin",
        )
        assert settings.oidc is not None
        sign_in = OidcSignIn(settings.oidc, draw=os.urandom, clock=self.clock, steady_s=lambda: 0.0)
        self.app = memory_app(settings, audit=self.audit, clock=self.clock, oidc=sign_in)


@pytest.fixture(scope="module")
def signing() -> Iterator[Signing]:
    with provider() as running:
        yield Signing(running)


@pytest.fixture(scope="module")
def server(signing: Signing) -> Iterator[Client]:
    app = front_of(signing.app)
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.follow_redirects = False
        yield client


@pytest.fixture
def client(server: Client, signing: Signing) -> Client:
    server.cookies.clear()
    signing.audit.clear()
    signing.clock.now_ms = NOW_S * 1000
    signing.provider.claims, signing.provider.error = {}, ""
    signing.provider.refused.clear()
    # The clock is set back.
    signing.app.state[STATE] = WrongKeys(lambda _scope: "", signing.clock)
    return server


def begin(client: Client, target: str = "/console/deployments") -> str:
    """Begin to sign in; return the provider's URL."""
    answer = client.get("/console/oidc/login", params={"next": target})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def authorized(url: str) -> dict[str, str]:
    """Sign in at the provider; return the parameters that it sends back."""
    location = httpx2.get(url).headers["location"]
    assert location.startswith(f"{CALLBACK}?")
    return {name: value for name, (value,) in parse_qs(urlsplit(location).query).items()}


def finish(client: Client, answer: dict[str, str]) -> httpx2.Response:
    return client.get("/console/oidc/callback", params=answer)


def sign_in(client: Client) -> httpx2.Response:
    return finish(client, authorized(begin(client)))


def test_the_sign_in_page_leads_to_the_provider(client: Client, signing: Signing):
    page = client.get("/console/login?next=/console/users").text
    (link,) = re.findall(r'href="(/console/oidc/login[^"]*)"', page)
    url = urlsplit(client.get(link).headers["location"])
    assert f"{url.scheme}://{url.netloc}" == signing.provider.url
    query = parse_qs(url.query)
    assert query["redirect_uri"] == [CALLBACK]
    assert query["code_challenge_method"] == ["S256"]
    assert len(query["state"][0]) == len(query["nonce"][0]) == 43


def test_whoever_has_a_role_is_signed_in_with_its_rights(client: Client, signing: Signing):
    answer = sign_in(client)
    assert answer.status_code == 200
    # The browser comes from the provider's site: a redirect would be without the session's cookie.
    assert answer.headers["refresh"] == "0; url=/console/deployments"
    session, pending = (
        next(cookie for cookie in answer.headers.get_list("set-cookie") if name in cookie)
        for name in ("headwater_console=", "headwater_oidc=")
    )
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= set(session.split("; "))
    assert "Max-Age=0" in pending
    assert client.get("/console/deployments").status_code == 200
    assert client.get("/console/keys").status_code == 403  # operators have no keys:read
    (entry,) = [entry for entry in signing.audit.log if entry.action == "console.sign_in"]
    assert (entry.key_id, entry.result) == ("oidc:7", "success")
    assert metadata(entry)["keyName"] == "amara@example.org"


def test_actions_of_a_person_are_in_the_audit_log_and_need_the_token_of_the_session(
    client: Client, signing: Signing
):
    sign_in(client)
    signing.audit.clear()
    assert client.post("/console/drain", data={"token": "made up"}).status_code == 403
    assert signing.audit.log == []
    found = re.search(r'name="token" value="(\w+)"', client.get("/console/deployments").text)
    assert found
    client.post("/console/deployments/rollback", data={"token": found[1]})
    assert {(entry.action, entry.key_id) for entry in signing.audit.log} == {
        ("deployments.rollback", "oidc:7")
    }
    client.post("/console/logout", data={"token": found[1]})
    assert client.get("/console/deployments").status_code == 303


def test_a_session_of_a_person_ends(client: Client, signing: Signing):
    answer = sign_in(client)
    assert "Max-Age=3600" in str(answer.headers.get_list("set-cookie"))
    signing.clock.now_ms += 60 * 60 * 1000 - 1
    assert client.get("/console/deployments").status_code == 200
    signing.clock.now_ms += 1
    assert client.get("/console/deployments").status_code == 303


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"groups": ["guests"]}, "groups: expected a group of HEADWATER_OIDC_ROLES"),
        ({"groups": None}, "groups: expected a group of HEADWATER_OIDC_ROLES"),
        ({"nonce": "of another sign-in"}, "nonce: expected that of this sign-in"),
        ({"nonce": None}, "nonce: expected that of this sign-in"),
        ({"aud": "another client"}, "id_token: aud"),
        ({"aud": [CLIENT_ID, "another"], "azp": "another"}, "azp: expected this console"),
        ({"iss": "https://another.example"}, "id_token: iss"),
        ({"exp": NOW_S - 60}, "id_token: exp: the token has expired"),
        ({"sub": None}, "id_token: sub"),
        ({"kid": "unknown"}, "id_token: kid"),
    ],
)
def test_a_token_that_is_not_for_this_sign_in_is_refused(
    client: Client, signing: Signing, claims: dict[str, Any], reason: str
):
    signing.provider.claims = claims
    answer = sign_in(client)
    assert answer.status_code == 401
    assert reason in answer.text
    assert "headwater_console=" not in str(answer.headers.get_list("set-cookie"))
    assert client.get("/console/deployments").status_code == 303


def test_a_token_that_another_signed_is_refused(client: Client, signing: Signing):
    signing.provider.claims = {"key": ed25519.Ed25519PrivateKey.generate(), "kid": "EdDSA"}
    assert "the signature is not" in sign_in(client).text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "made up"}, "state: expected that of this sign-in"),
        ({"state": ""}, "state: expected that of this sign-in"),
        ({"code": "made up"}, "the provider answered 400"),
        ({"iss": "https://another.example"}, "iss: expected the issuer"),
    ],
)
def test_an_answer_that_is_not_to_this_sign_in_is_refused(
    client: Client, changes: dict[str, str], reason: str
):
    answer = finish(client, {**authorized(begin(client)), **changes})
    assert (answer.status_code, reason in answer.text) == (401, True), answer.text


def test_a_code_is_of_one_sign_in(client: Client, signing: Signing):
    stolen = authorized(begin(client))
    other = authorized(begin(client))
    answer = finish(client, {**other, "code": stolen["code"]})
    assert answer.status_code == 401
    assert signing.provider.refused == ["code_verifier"]


def test_an_answer_without_its_cookie_or_too_late_is_refused(client: Client, signing: Signing):
    answer = authorized(begin(client))
    signing.clock.now_ms += 600_000
    assert "longer than ten minutes" in finish(client, answer).text
    client.cookies.clear()
    assert "expected a sign-in that began here" in finish(client, answer).text


def test_what_the_provider_refuses_is_shown_and_recorded(client: Client, signing: Signing):
    signing.provider.error = "access_denied"
    answer = sign_in(client)
    assert answer.status_code == 401
    assert "access_denied" in answer.text


def test_what_a_stranger_puts_into_an_answer_stays_on_its_line_of_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
):
    state = authorized(begin(client))["state"]
    finish(client, {"state": state, "error": "x\nERROR made up"})
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.message]
    assert "\n" not in line


def test_a_refused_sign_in_is_in_the_audit_log():
    with provider() as running:
        signing = Signing(running)
        running.claims = {"groups": []}
        with TestClient(front_of(signing.app), base_url=URL) as client:
            client.follow_redirects = False
            sign_in(client)
            assert signing.audit.log == []
    # Appended when the gateway stops; otherwise every minute.
    (entry,) = signing.audit.log
    assert (entry.action, entry.key_id, entry.result) == ("keys.refuse", "oidc:7", "failure")


def test_the_secret_is_sent_as_the_provider_takes_it():
    with provider() as running:
        running.methods = ["client_secret_post"]
        with TestClient(front_of(Signing(running).app), base_url=URL) as client:
            client.follow_redirects = False
            assert sign_in(client).status_code == 200


def test_a_provider_is_asked_for_its_addresses_once(client: Client, signing: Signing):
    sign_in(client)
    signing.provider.requests.clear()
    for _ in range(3):
        sign_in(client)
    assert set(signing.provider.requests) == {"/authorize", "/token"}


def test_signing_in_leads_nowhere_else(client: Client):
    answer = finish(client, authorized(begin(client, "https://elsewhere.example/console")))
    assert answer.headers["refresh"] == "0; url=/console"


def test_a_provider_that_is_away_is_named(client: Client, signing: Signing):
    settings = Settings(
        oidc_issuer="http://127.0.0.1:1",
        oidc_client_id="a",
        oidc_redirect_url=CALLBACK,
        oidc_roles="*=viewer",
    )
    assert settings.oidc is not None
    sign_in = OidcSignIn(settings.oidc, draw=os.urandom, clock=lambda: 0, steady_s=lambda: 0.0)
    with TestClient(memory_app(settings, oidc=sign_in), base_url=URL) as away:
        answer = away.get("/console/oidc/login", follow_redirects=False)
    assert answer.status_code == 503
    assert "the provider did not answer" in answer.text


def test_keys_of_the_provider_that_cannot_be_read_are_named_on_a_page():
    with provider() as running:
        running.keys_away = True
        signing = Signing(running)
        with TestClient(front_of(signing.app), base_url=URL) as client:
            client.follow_redirects = False
            answer = sign_in(client)
            assert answer.status_code == 503
            assert answer.headers["content-type"].startswith("text/html")
            assert "the keys of the provider could not be read" in answer.text
            assert "headwater_console=" not in str(answer.headers.get_list("set-cookie"))
    # Nobody was refused.
    assert signing.audit.log == []


def test_without_a_provider_there_is_no_such_page(client: Client):
    with TestClient(memory_app(), base_url=URL) as without:
        assert "Sign in" in without.get("/console/oidc/login").text
        assert "oidc" not in without.get("/console/login").text


def test_of_several_groups_the_role_with_the_most_rights_counts():
    roles = {"*": "viewer", "sre": "operator", "platform": "admin"}
    assert role_of(["sre", "platform"], roles) == "admin"
    assert role_of(["sre"], roles) == "operator"
    assert role_of([], roles) == "viewer"
    assert role_of(["sre"], {"platform": "admin"}) is None
    assert role_of(["*"], {"platform": "admin"}) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"oidc_client_id": ""}, "HEADWATER_OIDC_CLIENT_ID"),
        ({"oidc_roles": ""}, "HEADWATER_OIDC_ROLES"),
        ({"oidc_roles": "sre"}, "expected GROUP=ROLE"),
        ({"oidc_roles": "sre=owner"}, "viewer, operator, admin"),
        ({"oidc_redirect_url": "https://here.example/callback"}, "/console/oidc/callback"),
        ({"oidc_issuer": "http://issuer.example"}, "expected https://"),
        ({"oidc_issuer": "issuer"}, "HEADWATER_OIDC_ISSUER"),
        ({"oidc_session_minutes": "1"}, "HEADWATER_OIDC_SESSION_MINUTES: expected 5 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, str], said: str):
    usual = {
        "oidc_issuer": "https://issuer.example",
        "oidc_client_id": "console",
        "oidc_redirect_url": "https://here.example/console/oidc/callback",
        "oidc_roles": "sre=operator",
    }
    assert load_settings(**usual).oidc is not None
    with pytest.raises(SettingsInvalid, match=said):
        load_settings(**(usual | changes))


def test_without_its_provider_the_session_of_a_person_has_ended(client: Client, signing: Signing):
    sign_in(client)
    cookie = client.cookies["headwater_console"]
    with TestClient(memory_app(clock=signing.clock), base_url=URL) as without:
        without.follow_redirects = False
        header = {"cookie": f"headwater_console={cookie}"}
        assert without.get("/console/deployments", headers=header).status_code == 303
