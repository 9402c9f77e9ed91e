"""What GitHub posts, by its documentation: a push, and a pull request."""

from typing import Any

REPOSITORY = {"id": 4242, "full_name": "mill/wheel", "pushed_at": 1_782_900_000}
ACCOUNT = {"id": 77, "login": "amara-mill", "type": "User"}
ZEROS = "0" * 40
#: The actions that GitHub documents for pull_request.
ACTIONS = (
    "assigned", "auto_merge_disabled", "auto_merge_enabled", "closed", "converted_to_draft",
    "demilestoned", "dequeued", "edited", "enqueued", "labeled", "locked", "milestoned", "opened",
    "ready_for_review", "reopened", "review_request_removed", "review_requested", "synchronize",
    "unassigned", "unlabeled", "unlocked",
)  # fmt: skip


def push(**changed: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {
        "ref": "refs/heads/main",
        "before": "a" * 40,
        "after": "b" * 40,
        "created": False,
        "deleted": False,
        "forced": False,
        "base_ref": None,
        "compare": "https://github.com/mill/wheel/compare/aaa...bbb",
        "commits": [{"id": "b" * 40, "message": "Turn", "distinct": True}],
        "head_commit": {"id": "b" * 40, "message": "Turn"},
        "pusher": {"name": "amara-mill", "email": "amara@mill.example"},
        "sender": ACCOUNT,
        "repository": REPOSITORY,
        **changed,
    }


def pull_request(action: str = "opened", **changed: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    return {
        "action": action,
        "number": 5,
        "pull_request": {
            "id": 9,
            "number": 5,
            "state": "open",
            "locked": False,
            "title": "Turn the wheel",
            "user": ACCOUNT,
            "draft": False,
            "base": {"ref": "main", "sha": "a" * 40},
            "head": {"ref": "turn", "sha": "b" * 40},
            "labels": [{"id": 1, "name": "water"}, {"id": 2, "name": "\u00fcber"}],
            "additions": 12,
            "deletions": 3,
            "changed_files": 2,
            "created_at": "2026-07-01T10:00:00Z",
            "updated_at": "2026-07-01T10:00:00Z",
            "closed_at": None,
            "merged_at": None,
            **changed,
        },
        "repository": REPOSITORY,
        "sender": ACCOUNT,
    }
