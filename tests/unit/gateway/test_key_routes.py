"""Keys are created, rotated and revoked on one gateway, and take effect on all."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest
from litestar.testing import TestClient

from headwater.gateway.api import key_ring
from headwater.gateway.api.api_keys import KEYS_MAX
from headwater.gateway.api.key_ring import KeyRing
from headwater.gateway.settings.settings import Settings
from headwater.processors.api_keys import ApiKeys, Scope, digest_of
from headwater.schemas.api_keys import ApiKeyUsed
from headwater.schemas.codec import read_api_key_record
from tests.fakes.api_keys import MemoryApiKeys
from tests.fakes.audit_log import MemoryAudit
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.problem_contract import assert_problem
from tests.unit.gateway.test_auditing import ADMIN, metadata
from tests.unit.gateway.test_key_matrix import created, key

Client = TestClient[Any]
HOUR_MS = 60 * 60 * 1000
NOW_MS = 1_782_900_000_000


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Gateways:
    """Two gateways on one topic, and a third of another project."""

    def __init__(self, exits: ExitStack) -> None:
        self.records: list[bytes] = []
        self.clock = Clock()
        self.audit = MemoryAudit()
        self.logs = [MemoryApiKeys(self.records) for _ in range(3)]
        drawn = iter(range(1, 1_000_000))
        self.first, self.second, self.elsewhere = (
            exits.enter_context(
                TestClient(
                    memory_app(
                        Settings(project=project),
                        api_keys=log,
                        audit=self.audit,
                        clock=self.clock,
                        draw=lambda size: next(drawn).to_bytes(size),
                    ),
                    raise_server_exceptions=False,
                )
            )
            for log, project in zip(self.logs, ["shop", "shop", "bank"], strict=True)
        )

    def restart(self) -> None:
        self.records.clear()
        self.audit.clear()
        self.clock.now_ms += 10_000
        for log in self.logs:
            log.__init__(self.records)  # type: ignore[misc]


@pytest.fixture(scope="module")
def started() -> Iterator[Gateways]:
    with ExitStack() as exits:
        yield Gateways(exits)


@pytest.fixture
def gateways(started: Gateways) -> Gateways:
    started.restart()
    return started


def create(client: Client, headers: dict[str, str] | None = None, **fields: Any) -> Any:  # noqa: ANN401 (JSON)
    body = {"name": "ci", "scopes": ["audit:read"], **fields}
    answer = client.post("/v1/keys", json=body, headers=headers or ADMIN)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def status(client: Client, text: str) -> int:
    """Of a request for the audit log with an unknown parameter."""
    return client.get("/v1/audit?lmit=1", headers=bearer(text)).status_code


def test_the_text_of_a_key_is_shown_once_and_only_its_digest_is_stored(gateways: Gateways):
    made = create(gateways.first, role="viewer", rateLimit=5)
    assert made["key"].startswith(f"hw_{made['id'].removeprefix('key_')}_")
    assert made["scopes"] == sorted(made["scopes"])
    assert {"audit:read", "deliveries:read"} <= set(made["scopes"])
    (record,) = gateways.records
    assert read_api_key_record(record).digest == digest_of(made["key"])
    secret = made["key"].rpartition("_")[2]
    assert secret.encode() not in record
    listed = gateways.first.get("/v1/keys", headers=ADMIN)
    assert secret not in listed.text
    assert listed.json()["keys"] == [{k: v for k, v in made.items() if k != "key"}]
    assert secret not in str(gateways.audit.log)


def test_a_key_is_known_to_the_other_gateways_of_its_project_at_once(gateways: Gateways):
    text = create(gateways.first)["key"]
    assert status(gateways.second, text) == 400
    assert status(gateways.elsewhere, text) == 401


def test_a_key_is_revoked_on_all_gateways(gateways: Gateways, monkeypatch: pytest.MonkeyPatch):
    made = create(gateways.first)
    assert status(gateways.second, made["key"]) == 400
    answer = gateways.first.post(f"/v1/keys/{made['id']}/revoke", headers=ADMIN)
    assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    assert status(gateways.first, made["key"]) == 401
    # As the gateway does every two seconds.
    asyncio.run(gateways.logs[1].catch_up())
    assert status(gateways.second, made["key"]) == 401
    again = gateways.first.post(f"/v1/keys/{made['id']}/revoke", headers=ADMIN)
    assert again.json()["revokedAt"] == answer.json()["revokedAt"]


def test_a_rotated_key_has_two_texts_for_some_time(gateways: Gateways):
    made = create(gateways.first)
    url = f"/v1/keys/{made['id']}/rotate"
    rotated = gateways.first.post(url, json={"overlapSeconds": 60}, headers=ADMIN).json()
    assert (rotated["id"], rotated["scopes"]) == (made["id"], made["scopes"])
    for client in (gateways.first, gateways.second):
        assert [status(client, text) for text in (made["key"], rotated["key"])] == [400, 400]
    gateways.clock.now_ms += 60_000
    assert status(gateways.first, made["key"]) == 401
    assert status(gateways.first, rotated["key"]) == 400
    assert gateways.first.post(url, headers=ADMIN).status_code == 200  # A body is optional.


def test_a_key_that_has_ended_is_not_rotated(gateways: Gateways):
    made = create(gateways.first)
    gateways.first.post(f"/v1/keys/{made['id']}/revoke", headers=ADMIN)
    answer = gateways.first.post(f"/v1/keys/{made['id']}/rotate", json={}, headers=ADMIN)
    assert_problem(answer, 409, "key_ended")


def test_a_key_expires(gateways: Gateways):
    at_s = gateways.clock.now_ms // 1000 + 3600
    expires = datetime.fromtimestamp(at_s, UTC).isoformat()
    made = create(gateways.first, expiresAt=expires)
    assert made["expiresAt"] == expires.replace("+00:00", "Z")
    gateways.clock.now_ms = at_s * 1000 - 1
    assert status(gateways.first, made["key"]) == 400
    gateways.clock.now_ms += 1
    assert status(gateways.first, made["key"]) == 401
    listed = gateways.first.get("/v1/keys?ended=true", headers=ADMIN).json()["keys"]
    assert [row["state"] for row in listed] == ["expired"]
    assert gateways.first.get("/v1/keys", headers=ADMIN).json()["keys"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "ci"}, "scopes"),
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": "ci", "role": "owner"}, "role"),
        ({"name": "ci", "scopes": ["audit:write"]}, "scopes[0]"),
        ({"name": "ci", "role": "viewer", "expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
        ({"name": "ci", "role": "viewer", "expiresAt": "tomorrow"}, "expiresAt"),
        ({"name": "ci", "role": "viewer", "rateLimit": 0}, "rateLimit"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(gateways: Gateways, body: dict[str, Any], field: str):
    answer = gateways.first.post("/v1/keys", json=body, headers=ADMIN)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == field
    assert gateways.records == []


def test_a_key_gives_no_more_rights_than_it_has(gateways: Gateways):
    weak = create(gateways.first, scopes=["keys:write", "audit:read"])
    headers = bearer(weak["key"])
    body = {"name": "more", "scopes": ["audit:read", "keys:read"]}
    problem = assert_problem(
        gateways.first.post("/v1/keys", json=body, headers=headers), 403, "insufficient_scope"
    )
    assert problem["needed"] == ["keys:read"]
    strong = create(gateways.first, role="admin")
    url = f"/v1/keys/{strong['id']}/rotate"
    assert_problem(gateways.first.post(url, headers=headers), 403, "insufficient_scope")
    assert create(gateways.first, headers, scopes=["audit:read"])["createdBy"] == weak["id"]


def expiry(gateways: Gateways, seconds: int) -> str:
    return datetime.fromtimestamp(gateways.clock.now_ms // 1000 + seconds, UTC).isoformat()


def test_a_key_gives_no_longer_life_than_it_has(gateways: Gateways):
    scopes = ["keys:write", "audit:read"]
    short = create(gateways.first, scopes=scopes, expiresAt=expiry(gateways, 3600))
    headers = bearer(short["key"])
    assert create(gateways.first, headers)["expiresAt"] == short["expiresAt"]
    sooner = expiry(gateways, 60)
    made = create(gateways.first, headers, expiresAt=sooner)
    assert made["expiresAt"] == sooner.replace("+00:00", "Z")
    later = {"expiresAt": expiry(gateways, 7200)}
    body = {"name": "ci", "scopes": ["audit:read"], **later}
    answer = gateways.first.post("/v1/keys", json=body, headers=headers)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "expiresAt"
    # Neither by a rotation, which gives the text of a key to the caller.
    forever = create(gateways.first)
    for key_id, rotation in ((forever["id"], {}), (made["id"], later), (short["id"], later)):
        url = f"/v1/keys/{key_id}/rotate"
        answer = gateways.first.post(url, json=rotation, headers=headers)
        assert assert_problem(answer, 400, "invalid_parameter")["field"] == "expiresAt"
    itself = f"/v1/keys/{short['id']}/rotate"
    assert gateways.first.post(itself, headers=headers).status_code == 200


def test_a_key_gives_no_higher_limit_than_it_has(gateways: Gateways):
    limited = create(gateways.first, scopes=["keys:write", "audit:read"], rateLimit=50)
    headers = bearer(limited["key"])
    assert create(gateways.first, headers)["rateLimit"] == 50
    assert create(gateways.first, headers, rateLimit=5)["rateLimit"] == 5
    body = {"name": "ci", "scopes": ["audit:read"], "rateLimit": 51}
    answer = gateways.first.post("/v1/keys", json=body, headers=headers)
    assert assert_problem(answer, 400, "invalid_parameter")["field"] == "rateLimit"


def test_a_revocation_includes_the_keys_that_the_key_created(gateways: Gateways):
    scopes = ["keys:write", "audit:read"]
    parent = create(gateways.first, scopes=scopes)
    child = create(gateways.first, bearer(parent["key"]), scopes=scopes)
    ended, grandchild = (create(gateways.first, bearer(child["key"])) for _ in range(2))
    other = create(gateways.first)
    gateways.first.post(f"/v1/keys/{ended['id']}/revoke", headers=ADMIN)
    gateways.audit.clear()
    revoked = gateways.first.post(f"/v1/keys/{parent['id']}/revoke", headers=ADMIN).json()
    assert revoked["revokedKeys"] == [child["id"], grandchild["id"]]
    assert metadata(gateways.audit.log[-1])["revokedKeys"] == revoked["revokedKeys"]
    asyncio.run(gateways.logs[1].catch_up())
    for client in (gateways.first, gateways.second):
        assert [status(client, made["key"]) for made in (child, grandchild, other)] == [
            401, 401, 400
        ]  # fmt: skip
    listed = gateways.first.get(f"/v1/keys/{grandchild['id']}", headers=ADMIN).json()
    assert (listed["state"], listed["revokedAt"]) == ("revoked", revoked["revokedAt"])


def test_a_revocation_names_the_keys_that_the_key_had_rotated(gateways: Gateways):
    rotating = create(gateways.first, scopes=["keys:write", "audit:read"])
    first, second = create(gateways.first), create(gateways.first)
    for made in (first, second):
        url = f"/v1/keys/{made['id']}/rotate"
        assert gateways.first.post(url, headers=bearer(rotating["key"])).status_code == 200
    again = gateways.first.post(f"/v1/keys/{second['id']}/rotate", headers=ADMIN).json()
    assert again["rotatedBy"].startswith("admin:")
    revoked = gateways.first.post(f"/v1/keys/{rotating['id']}/revoke", headers=ADMIN).json()
    assert (revoked["revokedKeys"], revoked["rotatedKeys"]) == ([], [first["id"]])


def test_keys_of_another_project_are_neither_listed_nor_changed(gateways: Gateways):
    made = create(gateways.first)
    assert gateways.elsewhere.get("/v1/keys", headers=ADMIN).json() == {"keys": []}
    for method, path in (("GET", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        answer = gateways.elsewhere.request(method, f"/v1/keys/{made['id']}{path}", headers=ADMIN)
        assert_problem(answer, 404, "not_found")


def test_entries_of_the_audit_log_name_the_key_and_never_its_text(gateways: Gateways):
    made = create(gateways.first, role="admin", name="amara")
    attempted, result = gateways.audit.log
    assert (attempted.action, attempted.result, result.result) == (
        "keys.create", "attempted", "success"
    )  # fmt: skip
    assert metadata(attempted)["key"] == made["id"]
    assert metadata(attempted)["keyRole"] == "admin"
    gateways.audit.clear()
    gateways.first.post(f"/v1/keys/{made['id']}/revoke", headers=bearer(made["key"]))
    (attempted, _) = gateways.audit.log
    assert (attempted.key_id, attempted.project_id) == (made["id"], "shop")
    assert metadata(attempted)["keyName"] == "amara"


def test_a_refusal_for_want_of_a_scope_has_an_entry(gateways: Gateways):
    made = create(gateways.first, scopes=["keys:read"])
    gateways.audit.clear()
    gateways.first.post("/v1/keys", json={}, headers=bearer(made["key"]))
    (entry,) = gateways.audit.log
    assert (entry.key_id, entry.result) == (made["id"], "failure")
    assert metadata(entry)["code"] == "insufficient_scope"


def test_so_many_keys_are_in_memory_and_no_more(gateways: Gateways):
    gateways.records += [
        created(number, ("jobs:work",), project="shop") for number in range(KEYS_MAX)
    ]
    body = {"name": "one more", "role": "viewer"}
    answer = gateways.first.post("/v1/keys", json=body, headers=ADMIN)
    assert_problem(answer, 409, "too_many_keys")


def test_while_the_topic_was_not_read_keys_are_neither_right_nor_wrong():
    log = MemoryApiKeys([created(1, ("audit:read",))])
    log.away = True
    with TestClient(memory_app(api_keys=log), raise_server_exceptions=False) as client:
        answer = client.get("/v1/audit", headers=bearer(key(1)))
        assert_problem(answer, 503, "keys_unavailable")
        assert answer.headers["retry-after"]
        assert client.get("/health/ready").json()["parts"]["keys"] == "not read"
        # Those of the settings need no topic.
        assert client.get("/v1/audit?lmit=1", headers=ADMIN).status_code == 400


# --- the ring


def ring_of(log: MemoryApiKeys, clock: Clock) -> KeyRing:
    return KeyRing(log, [], project="default", clock=clock)  # type: ignore[arg-type] (a fake)


def test_keys_are_accepted_while_kafka_is_away():
    log, clock = MemoryApiKeys([created(1, ("audit:read",))]), Clock()
    ring = ring_of(log, clock)

    async def run() -> None:
        await ring.refresh()
        assert ring.state == "ok"
        log.away = True
        await ring.refresh()
        assert ring.state == "not current"
        assert ring.find(key(1)) is not None
        assert not await ring.refresh_for([key(2)])

    asyncio.run(run())


def test_keys_that_are_not_known_cost_a_read_a_second():
    log, clock = MemoryApiKeys(), Clock()
    ring = ring_of(log, clock)

    async def run() -> list[bool]:
        await ring.refresh()
        read = [await ring.refresh_for([key(number)]) for number in range(3)]
        clock.now_ms += 1000
        return [*read, await ring.refresh_for([key(9)]), await ring.refresh_for(["of no format"])]

    assert asyncio.run(run()) == [True, False, False, True, False]


def test_uses_of_a_key_are_one_record_an_hour():
    log, clock = MemoryApiKeys([created(1, ("audit:read",))]), Clock()
    ring = ring_of(log, clock)

    async def run() -> None:
        await ring.refresh()
        for _ in range(3):
            for _ in range(100):
                assert ring.find(key(1))
            await ring.refresh()
        clock.now_ms += HOUR_MS
        assert ring.find(key(1))
        await ring.refresh()
        await ring.refresh()

    asyncio.run(run())
    uses = list(map(read_api_key_record, log.records[1:]))
    hour_ms = NOW_MS - NOW_MS % HOUR_MS
    assert [(type(use), use.at_ms) for use in uses] == [
        (ApiKeyUsed, hour_ms),
        (ApiKeyUsed, hour_ms + HOUR_MS),
    ]


def test_a_use_that_is_not_stored_is_stored_later():
    log, clock = MemoryApiKeys([created(1, tuple(Scope))]), Clock()
    ring = ring_of(log, clock)

    async def run() -> None:
        await ring.refresh()
        assert ring.find(key(1))
        log.away = True
        await ring.refresh()
        log.away = False
        await ring.refresh()

    asyncio.run(run())
    assert len(log.records) == 2


def test_the_topic_is_followed_in_the_background(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_ring, "_FOLLOW_EVERY_S", 0.001)
    log, clock = MemoryApiKeys(), Clock()
    ring = ring_of(log, clock)

    async def run() -> None:
        async with ring.following(), asyncio.timeout(60):
            log.records.append(created(1, ("audit:read",)))
            while ring.find(key(1)) is None:  # noqa: ASYNC110 (another task reads the topic)
                await asyncio.sleep(0.001)

    asyncio.run(run())
    assert ring.find(key(1)) is not None


def signed_in(client: Client, text: str) -> dict[str, str]:
    """Sign in to the console; return the header with the session."""
    client.cookies.clear()
    answer = client.post("/console/login", data={"key": text}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    cookie = answer.cookies["headwater_console"]
    client.cookies.clear()
    return {"cookie": f"headwater_console={cookie}"}


def page(client: Client, session: dict[str, str]) -> int:
    return client.get("/console/audit", headers=session, follow_redirects=False).status_code


def test_a_session_ends_with_the_text_that_signed_in(gateways: Gateways):
    made = create(gateways.first, role="operator")
    session = signed_in(gateways.first, made["key"])
    assert page(gateways.first, session) != 303
    rotated = gateways.first.post(
        f"/v1/keys/{made['id']}/rotate", json={"overlapSeconds": 60}, headers=ADMIN
    ).json()
    assert page(gateways.first, session) != 303
    gateways.clock.now_ms += 60_000
    assert page(gateways.first, session) == 303
    assert page(gateways.first, signed_in(gateways.first, rotated["key"])) != 303


def test_a_session_is_of_one_project(gateways: Gateways):
    session = signed_in(gateways.first, ADMIN["x-admin-key"])
    assert page(gateways.second, session) != 303
    assert page(gateways.elsewhere, session) == 303


def test_all_requests_of_a_program_that_begins_wait_for_one_read_of_its_key():
    class SlowKeys(MemoryApiKeys):
        reads = 0

        async def catch_up(self) -> ApiKeys:
            self.reads += 1
            await asyncio.sleep(0)
            return await super().catch_up()

    async def scenario() -> None:
        log = SlowKeys()
        ring = KeyRing(log, [], project="default", clock=lambda: NOW_MS)
        await ring.refresh()
        before = log.reads
        log.records += [created(1, [Scope.AUDIT_READ])]

        async def arrives() -> bool:
            await ring.refresh_for([key(1)])
            return ring.find(key(1)) is not None

        assert await asyncio.gather(*(arrives() for _ in range(5))) == [True] * 5
        assert log.reads == before + 1

    asyncio.run(scenario())


def test_another_site_cannot_sign_a_browser_in(gateways: Gateways):
    answer = gateways.first.post(
        "/console/login",
        data={"key": ADMIN["x-admin-key"]},
        headers={"sec-fetch-site": "cross-site"},
        follow_redirects=False,
    )
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_whatever_error_a_read_has_the_topic_is_read_again():
    class BrokenKeys(MemoryApiKeys):
        async def catch_up(self) -> ApiKeys:
            raise ValueError("made up")

    async def scenario() -> None:
        ring = KeyRing(BrokenKeys(), [], project="default", clock=lambda: NOW_MS)
        await ring.refresh()
        assert ring.state == "not read"

    asyncio.run(scenario())
