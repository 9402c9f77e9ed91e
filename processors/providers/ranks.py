"""Ranks of values by their origin, which take precedence over times."""

from typing import Final

#: Resting heart rate and variability during sleep outrank those of the day, in any order.
SLEEP_RANK: Final = 1

# A lab report may be returned before it is recorded that it was sent: the later stage wins.
#: An upload that was submitted to Terra outranks one that is only stored here.
SUBMITTED_RANK: Final = 1
#: The final status of a report outranks both.
REPORT_RANK: Final = 2
