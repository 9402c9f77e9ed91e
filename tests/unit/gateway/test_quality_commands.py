"""`headwater quality` and `headwater user imports`: what they show of the API's answers."""

import json
from typing import Any

import click
from click.testing import CliRunner, Result

from headwater.gateway.cli.quality import quality
from headwater.gateway.cli.users import user
from tests.fakes.json_server import answering

SILENT = {
    "user_id": "user_amara",
    "provider": "garmin",
    "state": "silent",
    "silent_days": 5,
    "last_day": "2026-07-01",
    "last_delivery_at": "2026-07-01T05:00:00Z",
}
QUALITY = {
    "weeks": [],
    "rejected_values": [],
    "skipped": [
        {"week": "2026-06-29", "source": "terra", "provider": "garmin", "type": "nutrition",
         "reason": "nutrition", "number": 4}
    ],
    "connections": [{"provider": "garmin", "state": "silent", "connections": 1}],
    "not_receiving": [SILENT],
    "connections_counted_at": "2026-07-06T05:00:00Z",
}  # fmt: skip
REQUEST = {
    "provider": "garmin", "type": "daily", "answer": "taken", "deliveries": 3, "rows": 9,
    "days_with_data": 8, "missing_days": 2, "last_delivery_at": None,
}  # fmt: skip
IMPORT = {
    "workflow": "terra-import", "id": "d-1", "status": "complete", "first_day": "2026-07-01",
    "last_day": "2026-07-11", "requests": [REQUEST],
}  # fmt: skip


def run(command: click.Command, answers: dict[str, Any], *arguments: str) -> Result:
    with answering(answers.get) as (url, _):
        return CliRunner().invoke(command, [*arguments, "--url", url])


def test_skipped_deliveries_and_silent_connections_are_shown() -> None:
    result = run(quality, {"/admin/quality": QUALITY})
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "2026-06-29\tterra\tgarmin\tnutrition\tnutrition\t4" in lines
    assert "garmin\tsilent\t1" in lines
    assert any(line.startswith("user_amara\tgarmin\tsilent\t5\t2026-07-01") for line in lines)
    as_json = run(quality, {"/admin/quality": QUALITY}, "--json")
    assert json.loads(as_json.stdout)["not_receiving"] == [SILENT]
    early = {**QUALITY, "connections": [], "not_receiving": [], "connections_counted_at": None}
    assert "being counted" in run(quality, {"/admin/quality": early}).output


def test_what_came_of_an_import_is_shown() -> None:
    path = "/admin/user/user_amara/imports"
    result = run(user, {path: {"imports": [IMPORT]}}, "imports", "user_amara")
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.output.splitlines() if line.startswith("garmin"))
    assert line.split("\t")[:7] == ["garmin", "daily", "taken", "3", "9", "8", "2"]
    none = run(user, {path: {"imports": []}}, "imports", "user_amara")
    assert "There is no import of user_amara." in none.output
