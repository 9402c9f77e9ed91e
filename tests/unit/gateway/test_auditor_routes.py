"""`GET /admin/auditor` answers the latest report, and the console shows it."""

from litestar.testing import TestClient

from headwater.gateway.settings.settings import Settings
from tests.fakes.auditor_reports import MemoryReports
from tests.unit.gateway.memory_app import memory_app
from tests.unit.gateway.test_auditor_commands import FINDING, REPORT

ADMIN = {"x-admin-key": "dev-admin-key"}


def test_the_latest_report_is_answered():
    reports = MemoryReports()
    with TestClient(memory_app(Settings(), auditor=reports)) as client:
        assert client.get("/admin/auditor").status_code == 401
        none = client.get("/admin/auditor", headers=ADMIN)
        assert (none.status_code, none.json()["code"]) == (404, "not_found")
        reports.report = REPORT
        answer = client.get("/admin/auditor", headers=ADMIN).json()
        assert (answer["lost"], answer["deliveries"]) == (0, 120)
        assert "state" not in answer
        reports.report = REPORT.__class__(
            **{
                name: getattr(REPORT, name)
                for name in REPORT.__struct_fields__
                if name != "findings"
            },
            findings=[FINDING],
        )
        (finding,) = client.get("/admin/auditor", headers=ADMIN).json()["findings"]
        assert finding["first_seen"] == "1970-01-01T00:00:01Z"
        assert finding["ended"] is None
        assert "Postgres" in finding["meaning"]
