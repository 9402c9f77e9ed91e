"""What a comparison of the audit log with its rows finds: by project, unreadable, checkpoints."""

import json
from collections.abc import Sequence

from headwater.projections.audit import (
    GENESIS,
    Chained,
    LogEntry,
    Verification,
    entry_of,
    linked,
)
from headwater.projections.audit_checkpoints import CHECKPOINT, Checkpoint, signed
from headwater.schemas.codec import encode
from headwater.schemas.records import OperationAudited

KEY = "a key of 16 characters and more"


def record(number: int, project: str = "shop", **changes: str) -> OperationAudited:
    fields = {
        "key_id": "admin:00000000",
        "action": "graphs.deploy",
        "resource": "/api/graphs/review",
        "result": "success",
        "ip": "127.0.0.1",
        "user_agent": "",
        "metadata": "{}",
    } | changes
    return OperationAudited(id=f"entry-{number}", project_id=project, at_ms=number, **fields)


def chained(records: Sequence[OperationAudited]) -> list[Chained]:
    """Rows as the projector makes them, a chain per project."""
    heads: dict[str, bytes] = {}
    rows = []
    for offset, one in enumerate(records):
        entry = entry_of(one, offset)
        heads[one.project_id] = linked(heads.get(one.project_id, GENESIS), entry)
        rows.append(Chained(entry, heads[one.project_id]))
    return rows


def checkpoint(number: int, row: Chained, key: str = KEY, digest: str = "") -> OperationAudited:
    stated = Checkpoint(
        project="shop", offset=row.entry.offset, hash=digest or row.hash.hex(), at_ms=number
    )
    metadata = json.dumps(signed(stated, key).metadata())
    return record(number, action=CHECKPOINT, key_id="gateway", metadata=metadata)


def verified(
    records: Sequence[OperationAudited],
    rows: Sequence[Chained] | None = None,
    anchors: dict[int, bytes] | None = None,
    keys: Sequence[str] = (),
) -> Verification:
    verification = Verification(len(records), anchors or {}, keys)
    log = [LogEntry(offset, encode(one)) for offset, one in enumerate(records)]
    verification.compare(log, chained(records) if rows is None else rows)
    verification.finish()
    return verification


def what(verification: Verification) -> list[str]:
    return [finding.what for finding in verification.findings]


TWO_PROJECTS = [record(0), record(1, "other"), record(2), record(3, "other")]


def test_every_project_has_a_chain_of_its_own():
    result = verified(TWO_PROJECTS)
    assert result.findings == []
    alone = chained([TWO_PROJECTS[0]])[0]
    assert chained(TWO_PROJECTS)[0].hash == alone.hash
    assert {name: head.offset for name, head in result.heads.items()} == {"shop": 2, "other": 3}
    # Entries of another project change nothing: with the same offsets the hashes are the same.
    changed = [*TWO_PROJECTS[:1], record(1, "other", resource="/else"), *TWO_PROJECTS[2:]]
    ours, theirs = verified(TWO_PROJECTS).heads, verified(changed).heads
    assert ours["shop"] == theirs["shop"]
    assert ours["other"] != theirs["other"]


def test_hashes_that_differ_are_reported_once_by_project():
    rows = [Chained(row.entry, bytes(32)) for row in chained(TWO_PROJECTS)]
    result = verified(TWO_PROJECTS, rows)
    assert [finding.offset for finding in result.findings] == [0, 1]


def test_an_unreadable_record_is_a_finding():
    verification = Verification(2, {})
    rows = chained([record(0)])
    verification.compare([LogEntry(0, encode(record(0))), LogEntry(1, b"\xff")], rows)
    (finding,) = verification.findings
    assert (finding.offset, verification.found, verification.unreadable) == (1, 1, 1)
    assert finding.what.startswith("the record cannot be read")


def test_a_signed_checkpoint_covers_what_is_before_it():
    rows = chained([record(0), record(1)])
    records = [record(0), record(1), checkpoint(2, rows[1]), record(3)]
    result = verified(records, keys=["an older key", KEY])
    assert (what(result), result.signed, result.signed_to) == ([], 1, 1)
    assert (verified(records).signed, verified(records).unverified) == (0, 1)


def test_a_log_that_was_rewritten_does_not_agree_with_its_checkpoints():
    rows = chained([record(0), record(1)])
    rewritten = [record(0, resource="/else"), record(1), checkpoint(2, rows[1])]
    assert "states the hash" in what(verified(rewritten, keys=[KEY]))[0]
    # Nor can the checkpoint be written again without the key.
    again = [*rewritten[:2], checkpoint(2, chained(rewritten[:2])[1], key="guessed")]
    assert what(verified(again, keys=[KEY])) == ["none of the keys signed the checkpoint entry-2"]
    # Without checkpoints, a head that a gateway printed finds it.
    findings = what(verified(rewritten[:2], anchors={1: rows[1].hash}, keys=[KEY]))
    assert findings[0].startswith("the log up to here was changed")


def test_checkpoints_that_cannot_be_read_or_compared_are_findings():
    row = chained([record(0)])[0]
    garbled = record(1, action=CHECKPOINT, metadata="{}")
    assert what(verified([record(0), garbled])) == ["the checkpoint entry-1 cannot be read"]
    ahead = checkpoint(1, Chained(entry_of(record(7), 7), row.hash))
    assert "no such entry shortly before" in what(verified([record(0), ahead]))[0]
