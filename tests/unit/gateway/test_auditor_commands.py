"""`headwater auditor status` and `headwater receipt`: what they show, and their exit codes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from headwater.gateway.api.auditor import status_of
from headwater.gateway.cli.auditor import auditor
from headwater.gateway.cli.receipt import receipt
from headwater.processors.auditor.receipts import signed
from headwater.schemas.auditor import AuditorFinding, AuditorReport
from tests.fakes.json_server import answering
from tests.unit.processors.auditor.test_receipts import BODY, RECEIPT

FINDING = AuditorFinding(
    law="row_differs",
    subject="daily-summary/1@7",
    detail="expected the values of the record, found others in steps",
    first_seen_ms=1_000,
    last_seen_ms=2_000,
)
REPORT = AuditorReport(
    auditor="up-projector",
    at_ms=3_000,
    since_ms=0,
    caught_up=True,
    deliveries=120,
    lost=0,
    waiting=3,
    parked=1,
    unproven=0,
    history_records=9,
    step_results=5,
    ignored_records=2,
    rows=40,
    findings=[],
    unlisted=0,
    format=1,
    state=b"",
)


def shown(report: AuditorReport) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status_of(report)))
    return answer


def run(answers: dict[str, Any], *arguments: str) -> Result:
    with answering(answers.get) as (url, _):
        return CliRunner().invoke(auditor, ["status", *arguments, "--url", url])


def test_what_was_verified_is_shown():
    result = run({"/admin/auditor": shown(REPORT)})
    assert result.exit_code == 0, result.output
    assert "step_results\t5" in result.output.splitlines()
    assert "0 lost of 120 deliveries (3 waiting, 1 parked)." in result.output


def test_an_open_finding_is_listed_and_fails():
    found = msgspec.structs.replace(REPORT, findings=[FINDING], caught_up=False)
    result = run({"/admin/auditor": shown(found)})
    assert result.exit_code == 1
    assert "row_differs\tdaily-summary/1@7\t1970-01-01T00:00:01Z" in result.output
    assert "still reads" in result.output
    ended = [msgspec.structs.replace(FINDING, ended_ms=3_000)]
    result = run({"/admin/auditor": shown(msgspec.structs.replace(REPORT, findings=ended))})
    assert result.exit_code == 0, result.output


def test_a_receipt_is_printed_as_it_can_be_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answer = msgspec.to_builtins(signed(RECEIPT, "a-key-of-the-audit-log-0123456789"))
    answers = {"/admin/deliveries/abc/receipt": answer}
    with answering(answers.get) as (url, _):
        printed = CliRunner().invoke(receipt, ["abc", "--url", url])
    assert printed.exit_code == 0, printed.output
    file, body = tmp_path / "receipt.json", tmp_path / "body.json"
    file.write_text(printed.stdout)
    body.write_bytes(BODY)

    def verified(*arguments: str) -> Result:
        return CliRunner().invoke(receipt, ["verify", str(file), *arguments])

    assert verified().exit_code == 2  # Without keys, nothing can be verified.
    monkeypatch.setenv("HEADWATER_AUDIT_KEYS", "another-key-0123456789012345678")
    assert verified().exit_code == 1
    monkeypatch.setenv("HEADWATER_AUDIT_KEYS", "a-key-of-the-audit-log-0123456789")
    assert verified("--body", str(body)).exit_code == 0
    body.write_bytes(b"another body")
    result = verified("--body", str(body), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == [f"{body} is not the body of the delivery"]
    file.write_text(printed.stdout.replace('"webhooks"', '"events"'))
    assert verified().exit_code == 1
    file.write_text("{}")
    assert "expected a receipt" in verified().output


def test_a_receipt_without_a_signature_says_so():
    answers = {"/admin/deliveries/abc/receipt": msgspec.to_builtins(RECEIPT)}
    with answering(answers.get) as (url, _):
        printed = CliRunner().invoke(receipt, ["abc", "--url", url])
    assert "not signed" in printed.output
