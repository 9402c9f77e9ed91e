"""What a reconcile remembers of the requests that have failed."""

from headwater.gateway.builtin.data_requests import DataRequest, RequestResults, combined
from headwater.gateway.builtin.terra_workflows import bounded


def test_requests_that_are_given_up_stay_counted():
    failed = tuple(DataRequest(f"c-{number}", "daily") for number in range(300))
    once = bounded(RequestResults(taken=7, failed=failed))
    assert (len(once.failed), once.given_up) == (200, 100)
    twice = bounded(combined((once, RequestResults(failed=failed[:50], given_up=1))))
    assert (len(twice.failed), twice.given_up, twice.taken) == (200, 151, 7)
