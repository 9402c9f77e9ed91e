"""What a reconcile remembers of the requests that have failed."""

from headwater.gateway.house.asking import Asked, Wanted, together
from headwater.gateway.house.terra_workflows import bounded


def test_requests_that_are_given_up_stay_counted():
    failed = tuple(Wanted(f"c-{number}", "daily") for number in range(300))
    once = bounded(Asked(taken=7, failed=failed))
    assert (len(once.failed), once.given_up) == (200, 100)
    twice = bounded(together((once, Asked(failed=failed[:50], given_up=1))))
    assert (len(twice.failed), twice.given_up, twice.taken) == (200, 151, 7)
