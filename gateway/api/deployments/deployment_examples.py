"""Examples of answers about deployments, for the description of the HTTP API."""

from typing import Any, Final

from headwater.processors.deployments import ALL

DEPLOYMENT: Final[dict[str, Any]] = {
    "id": "dep_5d41402abc4b2a76b971",
    "app": "orders",
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "size": 1731,
    "workflows": [{"name": "order"}],
    "schedules": [{"name": "nightly", "workflow": "order", "cron": "0 2 * * *", "timezone": "UTC"}],
    "active": False,
    "deployedAt": "2026-07-01T08:00:00Z",
    "deployedBy": "admin:5baa61e4",
}
ACTIVE: Final = DEPLOYMENT | {
    "active": True,
    "activatedAt": "2026-07-01T09:00:00Z",
    "percent": ALL,
    "status": "active",
}
ACTIVE_WITH_SHARE: Final = ACTIVE | {
    "percent": 90,
    "shares": [
        {"deploymentId": DEPLOYMENT["id"], "percent": 90},
        {"deploymentId": "dep_98f1370821019495b2e5", "percent": 10},
    ],
}
REPORT: Final[dict[str, Any]] = {
    "runs": [
        {
            "workflowName": "poll",
            "instanceId": "poll-1",
            "runNumber": 0,
            "status": "waiting",
            "fits": False,
            "moves": True,
            "reason": "the code does not reach fetch, which is recorded",
            "recorded": {"kind": "do", "name": "fetch", "sequence": 1},
            "requested": {"kind": "do", "name": "load", "location": "orders.py:12"},
        }
    ]
}
#: An answer to a query also has the number of runs that have not ended.
READ: Final = DEPLOYMENT | {"openRuns": 3, "status": "draining"}
