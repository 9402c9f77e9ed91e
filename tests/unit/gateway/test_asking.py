"""What a reconcile remembers of the requests that have failed, and how answers are counted."""

import msgspec

from headwater.gateway.builtin.data_requests import (
    Answer,
    DataRequest,
    RequestResults,
    counted,
    requests_of,
)
from headwater.gateway.builtin.terra.client import DATA_TYPES
from headwater.gateway.builtin.terra_workflows import bounded


def test_requests_that_are_given_up_stay_counted():
    failed = tuple(DataRequest(f"c-{number}", "daily") for number in range(300))
    once = bounded(RequestResults(taken=7, failed=failed))
    assert (len(once.failed), once.given_up) == (200, 100)
    twice = bounded(once.with_more(RequestResults(failed=failed[:50], given_up=1)))
    assert (len(twice.failed), twice.given_up, twice.taken) == (200, 151, 7)


def test_a_404_is_of_the_type_of_data_unless_all_types_are_answered_so():
    strava = [Answer.TAKEN, Answer.UNKNOWN, Answer.UNKNOWN, Answer.UNSUPPORTED]
    gone = [Answer.UNKNOWN] * 4
    other = [Answer.TAKEN, Answer.REFUSED, Answer.TAKEN, Answer.TAKEN]
    requests = requests_of(["strava", "gone", "other"], DATA_TYPES)
    results = counted(zip(requests, [*strava, *gone, *other], strict=True))
    assert results == RequestResults(taken=4, refused=1, unsupported=3, unknown=4)
    again = counted([(requests[4], Answer.UNKNOWN)])
    assert again == RequestResults(unsupported=1)
    assert msgspec.convert(msgspec.to_builtins(results), RequestResults) == results
