"""Which origin of a value outranks which, whatever the clocks say."""

from typing import Final

#: Resting heart rate and variability measured asleep outrank the day's, whichever came first.
SLEEP_RANK: Final = 1

# A lab report may come back before it is recorded that it was sent: what is further wins.
#: An upload that was given to Terra is further than one that only lies here.
SUBMITTED_RANK: Final = 1
#: The end of a report outranks both.
REPORT_RANK: Final = 2
