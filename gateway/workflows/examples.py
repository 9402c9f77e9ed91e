"""What answers look like, for the description of the API."""

from typing import Any, Final

_AT: Final = "2026-07-01T08:00:00Z"

STATUS: Final[dict[str, Any]] = {"status": "waiting"}
COMPLETE: Final[dict[str, Any]] = {"status": "complete", "output": {"price": 125}}
CREATED: Final[dict[str, Any]] = {"id": "order-1", "details": {"status": "active"}}
BATCH: Final[dict[str, Any]] = {"instances": [CREATED]}
LISTING: Final[dict[str, Any]] = {
    "instances": [{"id": "order-1", "details": COMPLETE}],
    "hasNextPage": True,
    "cursor": "WyIyMDI2LTA3LTAxVDA4OjAwOjAwWiIsIm9yZGVyLTEiXQ",
}
NAMES: Final[dict[str, Any]] = {"workflows": [{"name": "order"}]}
DONE: Final[dict[str, Any]] = {"ok": True, "status": {"status": "paused"}}
BEGUN: Final[dict[str, Any]] = {"ok": True, "status": {"status": "active"}, "runNumber": 1}
EVENT_TAKEN: Final[dict[str, Any]] = {"status": STATUS}
TICKED: Final[dict[str, Any]] = {"processed": 3}

_STEP: Final[dict[str, Any]] = {
    "stepKey": "approval",
    "name": "approval",
    "type": "wait_for_event",
    "status": "waiting",
    "attempts": 0,
    "maxAttempts": None,
    "timeoutMs": None,
    "nextRetryAt": None,
    "wakeAt": "2026-07-02T08:00:00Z",
    "waitEventType": "approval",
    "lastAttemptAt": None,
}
INSTANCE: Final[dict[str, Any]] = {
    "id": "order-1",
    "details": STATUS,
    "meta": {
        "workflowName": "order",
        "runNumber": 0,
        "params": {"sku": "x"},
        "createdAt": _AT,
        "updatedAt": _AT,
        "startedAt": _AT,
        "completedAt": None,
        "currentStep": _STEP,
    },
}
_OF_RUN: Final[dict[str, Any]] = {
    "workflowName": "order",
    "instanceId": "order-1",
    "runNumber": 0,
}
HISTORY: Final[dict[str, Any]] = {
    "runNumber": 0,
    "steps": [
        {
            "id": "approval",
            **_OF_RUN,
            **_STEP,
            "result": None,
            "errorName": None,
            "errorMessage": None,
            "childWorkflowName": None,
            "childInstanceId": None,
            "trimmedBefore": None,
            "createdAt": _AT,
            "updatedAt": _AT,
            "completedAt": None,
            "rolledBackAt": None,
            "rollbackFailedAt": None,
        }
    ],
    "stepsHasNextPage": False,
    "tokens": [],
    "tokensHasNextPage": False,
    "events": [
        {
            "id": "01K2ZQ8M7D3W5T9V1X0Y4B6C8E",
            **_OF_RUN,
            "type": "approval",
            "payload": {"by": "amara"},
            "createdAt": _AT,
            "deliveredAt": None,
            "consumedByStepKey": None,
        }
    ],
    "eventsHasNextPage": False,
    "logs": [
        {
            "id": "00003-000000000000123-0000",
            **_OF_RUN,
            "stepKey": None,
            "attempt": None,
            "level": "info",
            "category": "billing",
            "message": "priced",
            "data": {"price": 125},
            "isReplay": False,
            "createdAt": _AT,
        }
    ],
    "logsHasNextPage": False,
}
TAIL: Final = (
    'event: status\nid: 123\ndata: {"status":"waiting","runNumber":0}\n\n'
    'event: end\nid: 130\ndata: {"status":"complete","output":{"price":125},"runNumber":0}\n\n'
)
