"""What every problem document has to be."""

from typing import Any

import httpx2


def assert_problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert problem["status"] == status
    assert problem["type"] == f"urn:headwater:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["instance"] == answer.url.path
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem
