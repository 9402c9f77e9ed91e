"""The console without a system: who is let in, what forms may do, how values are shown."""

import html
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient
from markupsafe import Markup

from headwater.gateway.api.authentication import Caller
from headwater.gateway.api.console.page_context import SECTIONS, SEEN_COOKIE
from headwater.gateway.api.console.rendering import age, duration, labelled, pretty, readable
from headwater.gateway.api.console.routes import COOKIE
from headwater.gateway.api.console.sessions import SESSION_S, Sessions, SignIn
from headwater.gateway.api.console.timeline import Bar, bars
from headwater.gateway.api.console.views import resource_address
from headwater.gateway.api.front import front_of
from headwater.gateway.api.workflows.authorization import Denied, RequestContext, WorkflowHooks
from headwater.gateway.settings.settings import Settings
from tests.fakes.audit_log import MemoryAudit
from tests.fakes.delivery_log import MemoryAnswers, MemoryLog, MemoryReplays
from tests.unit.gateway.conftest import NOW_MS, Clock
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.workflow_fakes import MemoryCommands
from tests.visitor import scripts

KEY = "the-key-of-operators"
PAGES = (
    "/console",
    "/console/failures",
    "/console/failures/retry?workflow=order&error=ValueError",
    "/console/deliveries",
    "/console/deliveries/abc",
    "/console/dead-letters",
    "/console/dead-letters/0/3",
    "/console/dead-letters/replay",
    "/console/workflows",
    "/console/workflows/order/start",
    "/console/instances",
    "/console/instances/order/a%2Fb",
    "/console/instances/order/a/graph.svg",
    "/console/deployments",
    "/console/users?user_id=user_1",
    "/console/rows?user_id=user_1",
    "/console/system",
    "/console/search?q=order%2Fa",
    "/console/why?table=daily_summary&key=user_1&key=garmin&key=2026-07-01",
    "/console/audit",
    "/console/keys",
    "/console/endpoints",
)
FORMS = (
    "/console/deliveries/abc/replay",
    "/console/dead-letters/replay",
    "/console/dead-letters/0/3/replay",
    "/console/instances/order/a/pause",
    "/console/deployments/dep_1/activate",
    "/console/deployments/dep_1/remove",
    "/console/deployments/rollback",
    "/console/drain",
    "/console/failures/retry",
    "/console/workflows/order/start",
    "/console/rebuilds",
    "/console/rebuilds/one/switch",
    "/console/seen",
    "/console/users/wipe",
    "/console/users/import",
    "/console/users/reconcile",
    "/console/users/disconnect",
    "/console/keys",
    "/console/keys/key_1/rotate",
    "/console/keys/key_1/revoke",
    "/console/endpoints",
    "/console/endpoints/ep_1/rotate",
    "/console/endpoints/ep_1/delete",
    "/console/endpoints/ep_1/test",
    "/console/endpoints/ep_1/deliveries/ep_1-00/replay",
)


@dataclass
class Opened:
    """A gateway whose Kafka is memory and whose Postgres is away."""

    clock: Clock = field(default_factory=Clock)
    log: MemoryLog = field(default_factory=MemoryLog)
    answers: MemoryAnswers = field(default_factory=MemoryAnswers)
    audit: MemoryAudit = field(default_factory=MemoryAudit)
    replays: MemoryReplays = field(default_factory=MemoryReplays)
    commands: MemoryCommands = field(default_factory=MemoryCommands)

    def app(self) -> Any:  # noqa: ANN401 (Litestar)
        return memory_app(
            Settings(admin_key=KEY),
            clock=self.clock,
            log=self.log,
            answers=self.answers,
            audit=self.audit,
            replays=self.replays,
            workflows=memory_workflows(commands=self.commands),
        )


@pytest.fixture(scope="module")
def opened() -> Opened:
    return Opened()


@pytest.fixture(scope="module")
def server(opened: Opened) -> Iterator[TestClient[Any]]:
    app = front_of(opened.app())
    with TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False) as client:
        client.follow_redirects = False
        yield client


@pytest.fixture
def client(server: TestClient[Any], opened: Opened) -> TestClient[Any]:
    """Nobody is signed in."""
    server.cookies.clear()
    opened.clock.now_ms = NOW_MS
    opened.answers.recorded.clear()
    opened.audit.clear()
    return server


@pytest.fixture
def signed_in(client: TestClient[Any], opened: Opened) -> TestClient[Any]:
    sign_in(client)
    opened.audit.clear()  # The sign-in has an entry.
    return client


def sign_in(client: TestClient[Any], key: str = KEY, **more: str) -> httpx2.Response:
    return client.post("/console/login", data={"key": key, **more})


def token(client: TestClient[Any]) -> str:
    """The token of the session's forms."""
    result = re.search(r'name="token" value="(\w+)"', client.get("/console/users").text)
    assert result
    return result[1]


# --- signing in -----------------------------------------------------------------------------------


def test_the_key_opens_and_the_cookie_is_for_the_console_alone(client: TestClient[Any]):
    answer = sign_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    parts = set(answer.headers["set-cookie"].lower().split("; ")[1:])
    assert parts == {"httponly", f"max-age={SESSION_S}", "path=/console", "samesite=strict"}
    assert client.get("/console/users").status_code == 200
    assert client.get("/admin/dlq").status_code == 401


@pytest.mark.parametrize(
    ("headers", "secure"), [({"x-forwarded-proto": "https"}, True), ({}, False)]
)
def test_behind_tls_the_cookie_goes_over_tls_alone(
    client: TestClient[Any], headers: dict[str, str], secure: bool
):
    answer = client.post("/console/login", data={"key": KEY}, headers=headers)
    assert ("secure" in answer.headers["set-cookie"].lower()) is secure


@pytest.mark.parametrize("key", ["", "another-key-of-operators", f"{KEY} ", "\ud800", "é"])
def test_a_wrong_key_is_told_as_a_refusal_and_the_key_is_nowhere(
    client: TestClient[Any], opened: Opened, caplog: pytest.LogCaptureFixture, key: str
):
    with caplog.at_level(logging.DEBUG):
        answer = client.post("/console/login", content=f"key={key}".encode(errors="replace"))
    assert answer.status_code == 401
    assert "not the operators" in html.unescape(answer.text)
    assert "set-cookie" not in answer.headers
    (reported,) = opened.answers.recorded
    assert (reported.code, reported.detail) == ("unauthorized", "POST '/console/login'")
    for text in (answer.text, caplog.text):
        assert KEY not in text
        assert "another-key" not in text


@pytest.mark.parametrize("path", ["/console/login", "/console/logout"])
def test_who_is_not_signed_in_sends_no_large_forms(
    client: TestClient[Any], opened: Opened, path: str
):
    as_large = b"key=" + b"%41" * 21_843  # 64 KiB, but for three bytes
    assert client.post(path, content=as_large).status_code in {303, 401}
    answer = client.post(path, content=as_large + b"%41%41")
    assert answer.status_code == 413
    assert "expected at most 65536 bytes" in answer.text
    assert len(opened.answers.recorded) == (path == "/console/login")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_asks_to_sign_in_and_then_leads_on(client: TestClient[Any], path: str):
    answer = client.get(path)
    assert answer.status_code == 303
    login = answer.headers["location"]
    expected = re.search(r'name="next" value="([^"]*)"', client.get(login).text)
    assert expected
    led = sign_in(client, next=html.unescape(expected[1])).headers["location"]
    assert led == path


@pytest.mark.parametrize(
    "wanted",
    [
        "https://elsewhere.example",
        "//elsewhere.example",
        "/console@elsewhere",
        "/v1/sync",
        "/consoles",
    ],
)
def test_signing_in_leads_nowhere_else(client: TestClient[Any], wanted: str):
    assert sign_in(client, next=wanted).headers["location"] == "/console"
    assert wanted not in client.get("/console/login", params={"next": wanted}).text


def test_where_it_leads_cannot_end_a_header(client: TestClient[Any]):
    answer = sign_in(client, next="/console/users?a=\r\nset-cookie: a=b")
    assert answer.headers["location"] == "/console/users?a=%0D%0Aset-cookie:%20a=b"


def test_a_session_ends_after_twelve_hours(signed_in: TestClient[Any], opened: Opened):
    opened.clock.now_ms = NOW_MS + 12 * 60 * 60 * 1000 - 1
    assert signed_in.get("/console/users").status_code == 200
    opened.clock.now_ms += 1
    assert signed_in.get("/console/users").status_code == 303


def test_signing_out_forgets_the_session(signed_in: TestClient[Any]):
    kept = signed_in.post("/console/logout", data={"token": "made up"})
    assert "set-cookie" not in kept.headers
    answer = signed_in.post("/console/logout", data={"token": token(signed_in)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")
    assert signed_in.get("/console/users").status_code == 303


OPERATOR = Caller("admin:00000000", frozenset({"system:read"}))


def sessions_of(key: str = KEY, *callers: Caller) -> Sessions:
    by_id = {caller.key_id: caller for caller in callers or (OPERATOR,)}
    return sessions(key, lambda: NOW_MS, lambda key_id, _: by_id.get(key_id))


def sessions(
    keys: str,
    clock: Callable[[], int],
    caller_with_id: Callable[[str, str], Caller | None],
    people_s: int = 3600,
) -> Sessions:
    async def nobody(_: str) -> None:
        return None

    sign_in = SignIn(nobody, caller_with_id, "default", keys.split(","))
    return Sessions(sign_in, clock, people_s=people_s)


def test_a_cookie_that_was_made_up_or_signed_with_another_key_is_no_session():
    sessions = sessions_of()
    cookie = sessions.new_cookie(OPERATOR)
    content, signature = cookie.split(".")
    assert sessions.caller(cookie) == OPERATOR
    assert sessions_of().caller(cookie) == OPERATOR  # another gateway
    for made_up in (
        "",
        ".",
        content,
        f"{content}.",
        f"{content[:-1]}A.{signature}",
        f"{content}A.{signature}",
        f"{content}.{signature[:-1]}",
        f"{content}.{sessions.form_token(content)}",
        sessions_of("another key").new_cookie(OPERATOR),
        "\ud800.é",
    ):
        assert sessions.caller(made_up) is None, made_up


def test_a_session_lasts_while_its_admin_key_is_one_of_several():
    cookie = sessions_of("the old key").new_cookie(OPERATOR)
    both = sessions_of("the new key,the old key")
    assert both.caller(cookie) == OPERATOR
    assert both.is_form_token(sessions_of("the old key").form_token(cookie), cookie)
    assert sessions_of("the new key").caller(cookie) is None
    assert sessions_of("the new key").caller(both.new_cookie(OPERATOR)) == OPERATOR


def test_a_shorter_time_for_people_counts_for_sessions_that_began_before():
    person = Caller("oidc:7", frozenset(), name="amara@example.org")
    cookie = sessions(KEY, lambda: NOW_MS, lambda *_: None).new_cookie(person, role="viewer")
    shorter = sessions(KEY, lambda: NOW_MS, lambda *_: None, people_s=60)
    assert shorter.caller(cookie) is None


def test_a_session_ends_with_its_key():
    cookie = sessions_of().new_cookie(OPERATOR)
    other = Caller("key_1", frozenset({"system:read"}))
    assert sessions_of(KEY, other).caller(cookie) is None


def test_a_person_has_the_scopes_of_a_role_and_no_key():
    person = Caller("oidc:7", frozenset(), name="amara@example.org")
    cookie = sessions_of().new_cookie(person, role="viewer")
    caller = sessions_of().caller(cookie)
    assert caller is not None
    assert (caller.key_id, caller.name) == (person.key_id, person.name)
    assert "deliveries:read" in caller.scopes
    assert "deliveries:write" not in caller.scopes


# --- forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize("given", [None, "", "made up", "of another session"])
def test_a_form_without_the_token_of_its_session_does_nothing(
    signed_in: TestClient[Any], opened: Opened, path: str, given: str | None
):
    if given == "of another session":
        opened.clock.now_ms += 1000
        others = sessions(KEY, opened.clock, lambda *_: None)
        given = others.form_token(others.new_cookie(OPERATOR))
    before = (list(opened.replays.replayed), list(opened.commands.sent))
    answer = signed_in.post(path, data={} if given is None else {"token": given})
    assert answer.status_code == 403
    assert "expected a form of this session" in answer.text
    assert (opened.replays.replayed, opened.commands.sent) == before
    assert opened.audit.entries == []


@pytest.mark.parametrize("path", FORMS)
def test_a_form_of_nobody_who_is_signed_in_does_nothing(
    client: TestClient[Any], opened: Opened, path: str
):
    answer = client.post(path, data={"token": "x"})
    assert answer.status_code == 401
    assert "Nothing was done: the session has ended." in answer.text
    assert opened.audit.entries == []


def test_a_dead_letter_is_put_back_and_audited_as_over_the_api(
    signed_in: TestClient[Any], opened: Opened
):
    form = {"token": token(signed_in)}
    headers = {"user-agent": "a-browser", "x-request-id": "request-of-mine"}
    answer = signed_in.post("/console/dead-letters/2/5/replay", data=form, headers=headers)
    assert answer.status_code == 200
    assert "<strong>1</strong> reprocessed" in answer.text
    assert opened.replays.replayed[-1] == (2, 5)
    (entry,) = opened.audit.entries
    assert (entry.action, entry.result) == ("dead_letters.replay", "success")
    assert entry.user_agent == "a-browser"
    assert '"correlationId":"request-of-mine"' in entry.metadata


def test_a_payload_that_is_not_json_is_named(signed_in: TestClient[Any], opened: Opened):
    before = len(opened.commands.sent)
    form = {"token": token(signed_in), "type": "go", "payload": '1,"startIfMissing":{}'}
    answer = signed_in.post("/console/instances/order/a/events", data=form)
    assert answer.status_code == 400
    assert "payload: expected JSON" in answer.text
    assert len(opened.commands.sent) == before


@pytest.mark.parametrize("after", ["3", '{"partition": 0}', "1/2", f"1/{'9' * 5000}"])
def test_where_to_go_on_is_never_taken_for_the_beginning(
    signed_in: TestClient[Any], opened: Opened, after: str
):
    before = list(opened.replays.replayed)
    form = {"token": token(signed_in), "after": after}
    answer = signed_in.post("/console/dead-letters/replay", data=form)
    assert answer.status_code == 400
    assert "after" in answer.text
    assert opened.replays.replayed == before


def test_a_verb_that_there_is_not_is_not_sent_on(signed_in: TestClient[Any]):
    path = "/console/instances/order/a/explode"
    assert signed_in.post(path, data={"token": token(signed_in)}).status_code == 404


def test_what_the_api_refuses_is_shown_with_the_way_back(signed_in: TestClient[Any]):
    form = {"token": token(signed_in)}
    answer = signed_in.post("/console/deployments/rollback", data=form)
    assert answer.status_code == 409
    assert "<code>nothing_to_roll_back</code>" in answer.text
    assert 'href="/console/deployments"' in answer.text


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_each_page_shows_what_it_could_not_get(signed_in: TestClient[Any], path: str):
    answer = signed_in.get(path)
    # They are in Kafka alone.
    is_there = path in {"/console/deployments", "/console/endpoints", "/console/keys"}
    is_composed = path == "/console" or path.startswith("/console/search")
    assert answer.status_code == (200 if is_there or is_composed else 503), answer.text
    assert ("store_unavailable" in answer.text) is not is_there
    assert "<h1>" in answer.text
    policy = answer.headers.get_list("content-security-policy")
    assert len(policy) == 1
    assert "form-action 'self'" in policy[0]
    assert "script-src 'self';" in policy[0]
    assert "unsafe" not in policy[0]
    assert answer.headers["cache-control"] == "no-store"
    assert scripts(answer.text) == 1
    assert " style=" not in answer.text


def test_other_pages_keep_the_policy_that_sends_no_forms(client: TestClient[Any]):
    (policy,) = client.get("/").headers.get_list("content-security-policy")
    assert "form-action 'none'" in policy


def test_each_page_names_the_requests_that_it_is_made_from(signed_in: TestClient[Any]):
    text = html.unescape(signed_in.get("/console/deliveries?status=dead&type=%3Cb%3E&source=").text)
    line = (
        'curl -H "x-admin-key: $HEADWATER_ADMIN_KEY" '
        "'http://127.0.0.1:8080/admin/deliveries?status=dead&type=%3Cb%3E'"
    )
    assert f"<code>{line}</code>" in text
    assert KEY not in text
    instances = html.unescape(signed_in.get("/console/instances").text)
    assert (
        'curl -H "authorization: Bearer dev-workflow-key" '
        "http://127.0.0.1:8080/api/workflows/instances" in instances
    )


def test_a_parameter_that_the_api_does_not_have_is_refused_on_the_page(
    signed_in: TestClient[Any],
):
    answer = signed_in.get("/console/deliveries?lmit=1&refresh=5&done=nonsense")
    assert answer.status_code == 400
    assert "found &#39;lmit&#39;" in answer.text
    assert "nonsense" not in answer.text


@pytest.mark.parametrize(
    ("given", "expected"), [("5", "5"), ("1", None), ("3601", None), ("-5", None), ("x", None)]
)
def test_a_page_may_be_asked_for_again_and_again(
    signed_in: TestClient[Any], given: str, expected: str | None
):
    text = signed_in.get("/console/users", params={"refresh": given}).text
    without_script = f'<noscript><meta http-equiv="refresh" content="{expected}"></noscript>'
    assert (without_script in text) is (expected is not None)
    assert f'data-live="{expected or 5}"' in text


def test_a_page_of_a_name_that_is_hostile_has_no_markup_of_it(signed_in: TestClient[Any]):
    hostile = "</title><script>alert(1)</script>\"'"
    for path in ("/console/users", "/console/instances", "/console/deliveries"):
        for name in ("user_id", "workflow", "status", "type", "reason"):
            text = signed_in.get(path, params={name: hostile}).text
            assert scripts(text) == 1


def test_an_address_that_names_nothing_is_not_there(signed_in: TestClient[Any]):
    for path in ("/console/why?table=daily_summary&key=", "/console/deliveries/webhooks%2F"):
        answer = signed_in.get(path)
        assert answer.status_code == 404
        assert "found nothing" in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/console/deliveries/abc",
        "/console/dead-letters/0/3",
        "/console/users?user_id=user_1",
        "/console/rows?user_id=user_1",
        "/console/why?table=daily_summary&key=user_1",
        "/console/audit",
    ],
)
def test_what_is_audited_when_it_is_read_is_not_read_again_and_again(
    signed_in: TestClient[Any], path: str
):
    assert "data-live" not in signed_in.get(path).text
    with_interval = signed_in.get(f"{path}{'&' if '?' in path else '?'}refresh=60").text
    assert 'data-live="60"' in with_interval


def test_an_unknown_address_is_a_page(client: TestClient[Any]):
    answer = client.get("/console/no/such/page")
    assert answer.headers["location"] == "/console/login?next=/console/no/such/page"
    sign_in(client)
    answer = client.get("/console/no/such/page")
    assert answer.status_code == 404
    assert "There is no such page" in answer.text
    assert 'href="/console/deliveries"' in answer.text


def test_each_section_has_a_page_and_a_key_of_its_own(signed_in: TestClient[Any]):
    for section in SECTIONS:
        text = signed_in.get(section.address).text
        assert f'data-key="{section.key}" aria-current="page"' in text
    assert len({section.key for section in SECTIONS}) == len(SECTIONS)


def test_what_was_seen_is_remembered_by_the_browser(signed_in: TestClient[Any]):
    answer = signed_in.post("/console/seen", data={"token": token(signed_in)})
    assert answer.headers["location"] == "/console?done=seen"
    assert "httponly" in answer.headers["set-cookie"].lower()
    commands = html.unescape(signed_in.get("/console/failures").text)
    assert "/admin/dlq/reasons?since=20" in commands


def test_a_cookie_that_is_no_time_is_ignored(signed_in: TestClient[Any]):
    cookies = "; ".join(f"{name}={value}" for name, value in signed_in.cookies.items())
    headers = {"cookie": f"{cookies}; {SEEN_COOKIE}=nonsense"}
    text = signed_in.get("/console/failures", headers=headers).text
    assert "/admin/dlq/reasons</code>" in text


def test_what_came_of_a_form_is_not_asked_for_again(signed_in: TestClient[Any]):
    form = {"token": token(signed_in)}
    done = signed_in.post("/console/dead-letters/2/5/replay", data=form).text
    assert "Refresh every" not in done
    assert "Refresh every" in signed_in.get("/console/users").text


def test_what_is_away_is_told_once(signed_in: TestClient[Any]):
    assert signed_in.get("/console").text.count("<code>store_unavailable</code>") == 1


def test_what_a_hook_answers_in_its_own_words_is_shown():
    def deny(_context: RequestContext) -> Denied:
        return Denied(429, "QUOTA", body={"left": "<0>"})

    hooks = WorkflowHooks(authorize_instance_read=deny)
    app = memory_app(Settings(admin_key=KEY), workflows=memory_workflows(hooks=hooks))
    with TestClient(app) as client:
        sign_in(client)
        answer = client.get("/console/instances")
    assert answer.status_code == 429
    assert '{"left":"<0>"}' in html.unescape(answer.text)


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        (r'rel="stylesheet" href="([^"]+)"', "text/css"),
        (r'script src="([^"]+)"', "text/javascript"),
    ],
)
def test_style_sheet_and_script_need_no_session_and_are_kept(
    client: TestClient[Any], pattern: str, kind: str
):
    page = client.get("/console/login").text
    (link,) = re.findall(pattern, page)
    style = client.get(link)
    assert style.headers["content-type"].startswith(kind)
    assert style.headers["cache-control"] == "public, max-age=86400"
    assert COOKIE not in style.headers.get("set-cookie", "")


# --- how values are shown -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (-1, "0 ms"),
        (0.0421, "42 ms"),
        (1.25, "1.2 s"),
        (59, "59 s"),
        (60, "1 min"),
        (108.4, "1 min 48 s"),
        (3_600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_duration(seconds: float, shown: str):
    assert duration(seconds) == shown


def test_cells_have_the_names_of_their_columns():
    cells = Markup('<td>&lt;td&gt;</td><td class="x">2</td><td>button</td>')
    assert labelled(cells, ["Name", "Number|number", ""]) == (
        '<td data-label="Name">&lt;td&gt;</td><td data-label="Number" class="x">2</td>'
        "<td>button</td>"
    )


@pytest.mark.parametrize(
    ("resource", "page"),
    [
        ("/api/workflows/workflows/order/instances/a%2Fb/retry", "/instances/order/a%2Fb"),
        ("/api/workflows/workflows/order/bulk", "/instances?workflow=order"),
        ("/admin/dlq/3/17", "/dead-letters/3/17"),
        ("/admin/dlq/replay", "/dead-letters"),
        ("/v1/deployments/rollback", "/deployments"),
    ],
)
def test_a_resource_of_the_audit_log_leads_to_its_page(resource: str, page: str):
    assert resource_address(resource) == f"/console{page}"


@pytest.mark.parametrize("resource", ["/admin/user/sha256:ab/wipe", "/v1/audit", "/", ""])
def test_a_resource_without_a_page_leads_nowhere(resource: str):
    assert resource_address(resource) == ""


def test_age_is_of_the_past_or_the_future():
    now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert age("2026-07-01T11:58:10Z", now) == "1 min ago"
    assert age("2026-07-01T14:00:00+01:00", now) == "in 1 h"


def test_values_are_shown_with_the_numbers_that_were_written():
    assert pretty({"a": "\ud800"}) == '{\n  "a": "\\ud800"\n}'
    assert pretty("x" * 30_000).endswith("… and 10002 more characters")


@pytest.mark.parametrize(
    ("base64", "shown"),
    [
        (None, ""),
        ("eyJhIjoxLjEwfQ==", '{\n  "a": 1.10\n}'),
        ("aGVsbG8gPGI+", "hello <b>"),
        ("AAECeyJhIg==", '···{"a"'),
        ("/w==", "·"),
    ],
)
def test_bytes_are_shown_as_one_reads_them(base64: str | None, shown: str):
    assert readable(base64) == shown


def entry(began: int, ended: int | None, **more: object) -> dict[str, object]:
    def at(second: int) -> str:
        return f"2026-07-01T08:00:{second:02}Z"

    usual = {"createdAt": at(began), "completedAt": None if ended is None else at(ended)}
    return usual | {"attempts": 1, "lastAttemptAt": None} | more


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], []),
        ([entry(0, 0)], [Bar(0, 4, None, 0)]),
        ([entry(0, 5), entry(5, 10)], [Bar(0, 500, None, 5), Bar(500, 500, None, 5)]),
        ([entry(0, 2), entry(2, None)], [Bar(0, 100, None, 2), Bar(100, 900, None, 18)]),
        ([entry(0, 10), entry(10, 10)], [Bar(0, 1000, None, 10), Bar(996, 4, None, 0)]),
        (
            [entry(0, 10, attempts=3, lastAttemptAt="2026-07-01T08:00:04Z")],
            [Bar(0, 1000, 400, 10)],
        ),
    ],
)
def test_bars_lie_on_one_line_from_the_first_beginning_to_the_last_end(
    entries: list[dict[str, Any]], expected: list[Bar]
):
    assert bars(entries, datetime(2026, 7, 1, 8, 0, 20, tzinfo=UTC)) == expected


# --- endpoints of notifications -------------------------------------------------------------------


def test_an_endpoint_is_created_changed_and_deleted_and_its_secret_shown_once(
    signed_in: TestClient[Any],
):
    form = {"token": token(signed_in), "url": "https://example.com/hooks", "workflows": "order"}
    secret = re.compile(r"whsec_[A-Za-z0-9+/=]+")
    shown = signed_in.post("/console/endpoints", data={**form, "types": "instance_errored"})
    (text,) = secret.findall(html.unescape(shown.text))
    listed = html.unescape(signed_in.get("/console/endpoints").text)
    assert "https://example.com/hooks" in listed
    assert secret.search(listed) is None
    (endpoint,) = set(re.findall(r"ep_[0-9a-f]+", listed))
    page = f"/console/endpoints/{endpoint}"
    (rotated,) = secret.findall(html.unescape(signed_in.post(f"{page}/rotate", data=form).text))
    assert rotated != text
    shown = signed_in.get(page)
    assert shown.status_code == 200
    assert "store_unavailable" in shown.text, "its deliveries are in Postgres"
    answer = signed_in.post(f"{page}/disable", data=form)
    assert answer.headers["location"] == f"{page}?done=endpoint_disable"
    assert "disabled" in signed_in.get("/console/endpoints").text
    answer = signed_in.post(f"{page}/delete", data=form)
    assert answer.headers["location"] == "/console/endpoints?done=endpoint_delete"
    assert endpoint not in signed_in.get("/console/endpoints").text


def test_an_endpoint_that_makes_no_sense_is_shown_at_its_field(signed_in: TestClient[Any]):
    form = {"token": token(signed_in), "url": "http://10.0.0.1/", "types": "instance_errored"}
    answer = signed_in.post("/console/endpoints", data=form)
    assert answer.status_code == 400
    assert "expected a public address" in answer.text
    assert "http://10.0.0.1/" in answer.text


# --- API keys -------------------------------------------------------------------------------------


def test_a_key_is_created_rotated_and_revoked_and_its_text_shown_once(
    signed_in: TestClient[Any],
):
    form = {"token": token(signed_in), "name": "amara", "role": "viewer", "scopes": "jobs:work"}
    text = re.compile(r"hw_[0-9a-f_]+")
    shown = signed_in.post("/console/keys", data={**form, "days": "90"})
    (key,) = text.findall(shown.text)
    listed = signed_in.get("/console/keys").text
    assert "amara" in listed
    assert text.search(listed) is None
    key_id = f"key_{key.split('_')[1]}"
    (rotated,) = text.findall(signed_in.post(f"/console/keys/{key_id}/rotate", data=form).text)
    assert rotated != key
    assert signed_in.get("/v1/audit", headers={"x-api-key": rotated}).status_code == 403
    answer = signed_in.post(f"/console/keys/{key_id}/revoke", data=form)
    assert answer.headers["location"] == "/console/keys?done=revoke"
    assert "all gateways refuse it" in signed_in.get(answer.headers["location"]).text
    assert signed_in.get("/v1/audit", headers={"x-api-key": rotated}).status_code == 401


def test_a_session_of_a_key_has_the_rights_of_the_key(signed_in: TestClient[Any]):
    form = {"token": token(signed_in), "name": "amara", "role": "viewer"}
    page = signed_in.post("/console/keys", data=form).text
    key = re.findall(r"hw_[0-9a-f_]+", page)[0]
    signed_in.cookies.clear()
    assert sign_in(signed_in, key).status_code == 303
    assert signed_in.get("/console/keys").status_code == 403
    assert signed_in.get("/console/audit").status_code == 403
    shown = signed_in.get("/console/deployments")
    assert shown.status_code == 200
    assert "authorization: Bearer $HEADWATER_KEY" in html.unescape(shown.text)
    assert_refused = signed_in.post("/console/drain", data={"token": token(signed_in)})
    assert assert_refused.status_code == 403
    assert "insufficient_scope" in assert_refused.text


def test_a_key_for_programs_does_not_sign_in(signed_in: TestClient[Any]):
    form = {"token": token(signed_in), "name": "jobs", "scopes": "jobs:work"}
    key = re.findall(r"hw_[0-9a-f_]+", signed_in.post("/console/keys", data=form).text)[0]
    signed_in.cookies.clear()
    assert sign_in(signed_in, key).status_code == 401


def test_whoever_a_hook_lets_in_over_http_a_session_has_its_own_rights():
    hooks = WorkflowHooks(authorize_request=lambda _context: Denied(401, "WHO_ARE_YOU"))
    app = memory_app(Settings(admin_key=KEY), workflows=memory_workflows(hooks=hooks))
    with TestClient(app) as client:
        sign_in(client)
        assert "WHO_ARE_YOU" not in client.get("/console/instances").text
        assert client.get("/api/workflows/workflows").status_code == 401
