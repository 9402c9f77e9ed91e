"""Example responses for the description of the API."""

from typing import Any, Final

import msgspec

from headwater.schemas.answers import CurrentStep, Event, LogLine, Step


def _example(kind: type[msgspec.Struct], **fields: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Return an example; required fields that are not given are null."""
    required = (field for field in msgspec.structs.fields(kind) if field.required)
    return dict.fromkeys(field.encode_name for field in required) | fields


_AT: Final = "2026-07-01T08:00:00Z"

EXPORTED: Final = (
    '{"format":1,"workflow":"order","instanceId":"order-1","runNumber":0,"status":"waiting"}\n'
    '{"workflow":"order","instance_id":"order-1","run_number":0,"sequence":0,"events":[]}\n'
)
STATUS: Final[dict[str, Any]] = {"status": "waiting"}
COMPLETE: Final[dict[str, Any]] = {"status": "complete", "output": {"price": 125}}
CREATED: Final[dict[str, Any]] = {"id": "order-1", "details": {"status": "active"}}
BATCH: Final[dict[str, Any]] = {"instances": [CREATED]}
LISTING: Final[dict[str, Any]] = {
    "instances": [
        {
            "id": "order-1",
            "details": COMPLETE,
            "workflowName": "order",
            "createdAt": "2026-07-01T08:00:00Z",
            "updatedAt": "2026-07-01T08:00:09Z",
        }
    ],
    "hasNextPage": True,
    "cursor": "WyIyMDI2LTA3LTAxVDA4OjAwOjAwWiIsIm9yZGVyIiwib3JkZXItMSJd",
}
BULK: Final[dict[str, Any]] = {
    "instances": [{"id": "order-1", "status": "active"}],
    "hasNextPage": False,
}
NAMES: Final[dict[str, Any]] = {
    "workflows": [
        {"name": "order", "paramsSchema": {"type": "object", "required": ["sku"]}},
        {"name": "report"},
    ]
}
DONE: Final[dict[str, Any]] = {"ok": True, "status": {"status": "paused"}}
MOVED: Final[dict[str, Any]] = {
    "ok": True,
    "status": {"status": "waiting"},
    "deploymentId": "dep_5d41402abc4b2a76b971",
}
RUN_STARTED: Final[dict[str, Any]] = {"ok": True, "status": {"status": "active"}, "runNumber": 1}
OUTPUT_SET: Final[dict[str, Any]] = {"ok": True, "status": {"status": "errored"}}
EVENT_SENT: Final[dict[str, Any]] = {"status": STATUS}
TICKED: Final[dict[str, Any]] = {"processed": 3}

_STEP: Final[dict[str, Any]] = _example(
    CurrentStep,
    stepKey="approval",
    name="approval",
    type="waitForEvent",
    status="waiting",
    attempts=0,
    wakeAt="2026-07-02T08:00:00Z",
    waitEventType="approval",
)
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
_RUN_KEY: Final[dict[str, Any]] = {
    "workflowName": "order",
    "instanceId": "order-1",
    "runNumber": 0,
}
HISTORY: Final[dict[str, Any]] = {
    "runNumber": 0,
    "steps": [_example(Step, id="approval", **_RUN_KEY, **_STEP, createdAt=_AT, updatedAt=_AT)],
    "stepsHasNextPage": False,
    "tokens": [],
    "tokensHasNextPage": False,
    "events": [
        _example(
            Event,
            id="01K2ZQ8M7D3W5T9V1X0Y4B6C8E",
            **_RUN_KEY,
            type="approval",
            payload={"by": "amara"},
            createdAt=_AT,
        )
    ],
    "eventsHasNextPage": False,
    "logs": [
        _example(
            LogLine,
            id="00003-000000000000123-0000",
            **_RUN_KEY,
            level="info",
            category="billing",
            message="priced",
            data={"price": 125},
            isReplay=False,
            createdAt=_AT,
        )
    ],
    "logsHasNextPage": False,
}
JOB: Final[dict[str, Any]] = {
    "key": "order.order-1.0.4.1",
    "type": "charge_card",
    "workflow": "order",
    "instanceId": "order-1",
    "runNumber": 0,
    "tokenId": "4",
    "nodeRef": "pay",
    "attempt": 1,
    "input": {"amount": 125},
    "leaseUntil": _AT,
    "idempotencyToken": "9b1c7f0e52d84a6f8e3d2b5a70c1946f",
}
JOBS: Final[dict[str, Any]] = {"jobs": [JOB]}
OPEN_JOBS: Final[dict[str, Any]] = {
    "jobs": [
        {
            "type": "charge_card",
            "status": "taken",
            "workflow": "order",
            "instanceId": "order-1",
            "runNumber": 0,
            "tokenId": "4",
            "nodeRef": "pay",
            "attempt": 1,
            "createdAt": _AT,
            "updatedAt": _AT,
            "worker": "node 4711",
            "leaseUntil": _AT,
        }
    ],
    "hasNextPage": False,
}
JOB_ENDED: Final[dict[str, Any]] = {"ok": True}
JOB_EXTENDED: Final[dict[str, Any]] = {"leaseUntil": _AT}
TAIL: Final = (
    'event: status\nid: 123\ndata: {"status":"waiting","runNumber":0}\n\n'
    'event: end\nid: 130\ndata: {"status":"complete","output":{"price":125},"runNumber":0}\n\n'
)

_INSPECTED: Final[dict[str, Any]] = {
    "workflowName": "review",
    "instanceId": "review-1",
    "runNumber": 0,
    "status": "active",
    "sequence": 14,
    "at": _AT,
    "definitionDigest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
}
_TOKEN: Final[dict[str, Any]] = {
    "id": "2",
    "nodeRef": "vote",
    "status": "dispatched",
    "pathId": "root.start.1",
    "parentTokenId": "0",
    "transitionRef": "ask",
    "fork": "0/judges",
    "siblingGroup": "judges",
    "branchIndex": 1,
    "branchTotal": 2,
    "iterationCounts": {"ask": 1},
    "attempts": 0,
    "waitsFor": {"what": "task"},
}
TOKENS: Final[dict[str, Any]] = {**_INSPECTED, "tokens": [_TOKEN], "total": 1}
_ARRIVED: Final[dict[str, Any]] = {"type": "MARK_WAITING", "token_id": "3"}
_COUNTS: Final[dict[str, Any]] = {"total": 2, "completed": 1, "failed": 0, "terminal": 1}
_SYNC_CHECK: Final[dict[str, Any]] = {
    "type": "decision.sync.check_condition",
    "token_id": "3",
    "node_ref": "tally",
    "payload": {"transition": "meet", "strategy": "m_of_n:2", **_COUNTS},
}
_SIMULATED: Final[dict[str, Any]] = {
    **_INSPECTED,
    "token": _TOKEN,
    "decisions": [_ARRIVED],
    "trace": [_SYNC_CHECK],
    "wouldBe": "active",
}
ROUTED: Final[dict[str, Any]] = {
    **_SIMULATED,
    "fires": [{"transitionRef": "meet", "toNodeRef": "tally", "tokens": 1}],
}
JOINED: Final[dict[str, Any]] = {
    **_SIMULATED,
    "transitionRef": "meet",
    "strategy": "m_of_n:2",
    "decision": "MARK_WAITING",
    "counts": _COUNTS,
}
MIGRATED: Final[dict[str, Any]] = {
    **_INSPECTED,
    "version": 2,
    "digest": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "possible": False,
    "tokens": [
        {
            "id": "2",
            "nodeRef": "vote",
            "toNodeRef": "judge",
            "status": "executing",
            "problem": "it has begun the task 'ask_judge', and 'judge' runs the task 'judge'",
        }
    ],
    "problems": [],
}
_SENTENCE: Final = "Branch 1 runs 'vote' (token 2)."
EXPLAINED: Final[dict[str, Any]] = {
    **_INSPECTED,
    "says": [_SENTENCE],
    "joins": [
        {
            "nodeRef": "tally",
            "transitionRef": "meet",
            "siblingGroup": "judges",
            "fork": "0/judges",
            "strategy": "m_of_n:2",
            "total": 2,
            "needed": 2,
            "arrivedCount": 1,
            "missingCount": 1,
            "missingBy": {"running": 1},
            "arrived": [{"branchIndex": 0, "tokenId": "3", "arrivedAt": _AT}],
            "missing": [
                {
                    "branchIndex": 1,
                    "why": "running",
                    "says": _SENTENCE,
                    "tokenId": "2",
                    "nodeRef": "vote",
                    "status": "dispatched",
                }
            ],
            "dueAt": None,
            "onTimeout": None,
            "says": [_SENTENCE],
        }
    ],
    "waitingFor": {"task": 1, "siblings": 1},
}
TRACED: Final[dict[str, Any]] = {
    **_INSPECTED,
    "decided": [
        {
            "sequence": 11,
            "lastSequence": 14,
            "at": _AT,
            "events": ["TokenCompleted", "BranchChanged", "TokensCreated", "TokenArrived"],
            "decisions": [_ARRIVED],
            "trace": [{**_SYNC_CHECK, "sequence": 14}],
            "same": True,
        }
    ],
    "nextFrom": 15,
}
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 280 106">…</svg>'
MERMAID: Final = (
    'flowchart TD\n    start(( )) --> n0\n    n0["vote<br/>ask_judge<br/>1 executing"]\n'
    "    classDef live fill:#ddf4ff,stroke:#0969da,stroke-width:3px\n    class n0 live\n"
)
