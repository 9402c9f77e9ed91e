"""Every field that normalizers read is one that Terra documents, or is known to be otherwise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from headwater.schemas.providers.terra import Activity, Body, Daily, Sleep
from headwater.schemas.providers.terra_labs import LabFailure, Result

DOCUMENTED = {
    line
    for line in (Path(__file__).parent / "terra_fields.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
}
#: Days of records without a start, as the contract has them.
DAYS = {"summary_date", "date", "day"}
#: Fields that the specification of the pipeline names, and Terra's documentation does not.
SEEN = {"sleep.scores.recovery"}
#: The older structure of lab reports, of which Terra has no documentation.
OLDER = {"name", "value", "unit", "classification", "collection_date", "reference_range"}


def paths(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    """The fields of a struct and of those in it."""
    for field in msgspec.structs.fields(kind):
        path = f"{prefix}.{field.encode_name}"
        yield from _of(field.type, path)


def _of(annotation: Any, path: str) -> Iterator[str]:  # noqa: ANN401
    kinds = get_args(annotation) if get_origin(annotation) not in (tuple, dict) else (annotation,)
    for kind in kinds or (annotation,):
        if get_origin(kind) is tuple:
            yield from _of(get_args(kind)[0], f"{path}[]")
            return
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield path
            yield from paths(kind, path)
            return
    yield path


def test_the_list_has_what_terra_sends():
    assert "sleep.sleep_durations_data.asleep.duration_REM_sleep_state_seconds" in DOCUMENTED
    assert len(DOCUMENTED) > 300


@pytest.mark.parametrize(
    ("kind", "type_"), [(Daily, "daily"), (Sleep, "sleep"), (Activity, "activity"), (Body, "body")]
)
def test_fields_of_records_are_documented(kind: type[msgspec.Struct], type_: str):
    read = set(paths(kind, type_)) - {f"{type_}.{name}" for name in DAYS} - SEEN
    assert read - DOCUMENTED == set()


def test_fields_of_lab_reports_are_documented():
    prefix = "lab_report.completed.data.results[]"
    older = {f"{prefix}.{name}" for name in OLDER}
    older |= {f"{prefix}.reference_range.{end}" for end in ("lower", "upper")}
    assert set(paths(Result, prefix)) - older - DOCUMENTED == set()
    failed = set(paths(LabFailure, "lab_report.failed")) - {"lab_report.failed.upload_id"}
    assert failed - {"lab_report.failed.data"} - DOCUMENTED == set()
