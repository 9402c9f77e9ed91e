"""Shares of the new runs over HTTP: what they change, and what `active` still is."""

import html
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from litestar.testing import TestClient

from headwater.schemas.deployments import DeployedWorkflow, DeploymentCreated
from tests.fakes.deployments import MemoryDeployments
from tests.unit.gateway.memory_app import memory_app, memory_workflows
from tests.unit.gateway.problem_contract import assert_problem

OPERATOR = {"x-admin-key": "dev-admin-key"}
USER = {"authorization": "Bearer dev-workflow-key"}
WORLD = {"authorization": "Bearer dev-world-key"}
ONE, TWO, THREE = (f"dep_{number:020}" for number in (1, 2, 3))


@pytest.fixture
def client() -> Iterator[TestClient[Any]]:
    """Three deployments, of which the first is active."""
    log = MemoryDeployments()
    for name in (ONE, TWO, THREE):
        log.deployments.apply(
            DeploymentCreated(
                id=name,
                app="orders",
                digest="d",
                size=1,
                offset=0,
                workflows=(DeployedWorkflow(name="order", kind="replay"),),
                by="admin:1",
                at_ms=1,
            )
        )
    app = memory_app(workflows=memory_workflows(deployments=log))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert change(client, f"{ONE}/activate").is_success
        yield client


def change(
    client: TestClient[Any], path: str, body: object = None, **headers: str
) -> httpx2.Response:
    content: dict[str, Any] = {} if body is None else {"json": body}
    url = f"/v1/deployments/{path}"
    return client.post(url, headers=OPERATOR | headers, **content)


def share(client: TestClient[Any], name: str, percent: object, **headers: str) -> httpx2.Response:
    return change(client, f"{name}/activate", {"percent": percent}, **headers)


def active(client: TestClient[Any]) -> dict[str, Any]:
    answer = client.get("/v1/deployments/active", headers=USER)
    assert answer.is_success
    return dict(answer.json()) | {"tag": answer.headers["etag"]}


def test_a_share_is_set_raised_and_completed(client: TestClient[Any]):
    for percent in (10, 50):
        answer = share(client, TWO, percent).json()
        assert (answer["active"], answer["percent"], answer["status"]) == (
            False,
            percent,
            "sharing",
        )
        main = active(client)
        assert (main["id"], main["active"], main["percent"]) == (ONE, True, 100 - percent)
        assert main["shares"] == [
            {"deploymentId": ONE, "percent": 100 - percent},
            {"deploymentId": TWO, "percent": percent},
        ]
        world = client.get("/v1/world/deployment-id", headers=WORLD)
        assert world.json() == {"deploymentId": ONE}
    answer = share(client, TWO, 100).json()
    assert (answer["active"], answer["percent"], answer["replaces"]) == (True, 100, ONE)
    assert (active(client)["id"], active(client).get("shares")) == (TWO, None)


def test_a_share_ends_by_0_percent_and_by_a_rollback(client: TestClient[Any]):
    assert change(client, f"{TWO}/activate").is_success
    for end in (lambda: share(client, THREE, 0), lambda: change(client, "rollback")):
        assert share(client, THREE, 10).is_success
        assert end().is_success
        main = active(client)
        assert (main["id"], main["percent"], main["tag"]) == (TWO, 100, f'"{TWO}"')
    # Without a share, a rollback goes back as always.
    assert change(client, "rollback").json()["id"] == ONE


def test_a_rollback_of_a_share_that_is_repeated_is_executed_once(client: TestClient[Any]):
    change(client, f"{TWO}/activate")
    share(client, THREE, 10)
    tag = active(client)["tag"]
    assert tag == f'"{TWO}+{THREE}@10"'
    # The plain id would go back further when it is repeated.
    plain = change(client, "rollback", **{"if-match": f'"{TWO}"'})
    assert_problem(plain, 412, "deployment_changed")
    for _ in range(2):
        assert change(client, "rollback", **{"if-match": tag}).json()["id"] == TWO
    assert active(client)["id"] == TWO


def test_an_activation_may_name_the_active_one_or_the_share_as_well(client: TestClient[Any]):
    share(client, TWO, 10)
    tag = active(client)["tag"]
    assert share(client, TWO, 20, **{"if-match": f'"{ONE}"'}).is_success
    assert_problem(share(client, TWO, 30, **{"if-match": tag}), 412, "deployment_changed")
    assert share(client, TWO, 30, **{"if-match": active(client)["tag"]}).is_success


def test_shares_that_cannot_be_are_refused(client: TestClient[Any]):
    assert_problem(share(client, ONE, 10), 409, "deployment_active")
    assert share(client, TWO, 10).is_success
    assert_problem(share(client, THREE, 10), 409, "share_taken")
    for percent in (-1, 101, "10", 1.5, None):
        assert_problem(share(client, TWO, percent), 400, "invalid_body")
    # To activate another one ends the share; so does activating the active one.
    assert change(client, f"{THREE}/activate").json()["replaces"] == ONE
    assert "shares" not in active(client)
    share(client, TWO, 10)
    again = change(client, f"{THREE}/activate").json()
    assert (again["active"], again.get("replaces")) == (True, None)
    assert "shares" not in active(client)


def test_a_share_needs_an_active_deployment():
    log = MemoryDeployments()
    log.deployments.apply(
        DeploymentCreated(
            id=ONE, app="a", digest="d", size=1, offset=0, workflows=(), by="k", at_ms=1
        )
    )
    app = memory_app(workflows=memory_workflows(deployments=log))
    with TestClient(app, raise_server_exceptions=False) as client:
        assert_problem(share(client, ONE, 10), 409, "no_active_deployment")


def words_of(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_the_console_sets_shares_and_ends_them(client: TestClient[Any]):
    client.follow_redirects = True
    client.post("/console/login", data={"key": OPERATOR["x-admin-key"]})
    page = client.get("/console/deployments").text
    token = re.search(r'name="token" value="(\w+)"', page)
    assert token
    assert f'action="/console/deployments/{TWO}/remove"' in page
    assert f'action="/console/deployments/{ONE}/remove"' not in page, "it is active"
    form = {"token": token[1], "replaces": ONE, "percent": "10"}
    answer = client.post(f"/console/deployments/{TWO}/activate", data=form)
    assert "The share of the new runs has changed." in words_of(answer.text)
    page = client.get("/console/deployments").text
    assert f"{TWO} sharing 10 %" in words_of(page)
    assert f"{ONE} active 90 %" in words_of(page)
    assert f'action="/console/deployments/{TWO}/remove"' not in page, "it has a share"
    # The page names the share, so that a rollback ends that and goes no further back.
    tag = f"{ONE}+{TWO}@10"
    assert f'name="replaces" value="{tag}"' in page
    rollback = client.post("/console/deployments/rollback", data=form | {"replaces": tag})
    assert rollback.is_success
    assert "shares" not in active(client)
    removed = client.post(f"/console/deployments/{ONE}/remove", data=form)
    assert "deployment_active" in removed.text
