"""Raw topics of the alternatives to Headwater, and the topics of their rows."""

from typing import Final

BY_HAND: Final = "bench-by-hand"
BY_HAND_ROWS: Final = "bench-by-hand-rows"
FAUST: Final = "bench-faust"
FAUST_ROWS: Final = "bench-faust-rows"
#: Created before Faust requests it: on a busy machine it would not see its own in time, and stop.
FAUST_CHANGELOG: Final = "bench-faust-app-rows-changelog"
QUIX: Final = "bench-quix"
QUIX_DEFAULT: Final = "bench-quix-default"
ALL: Final = (BY_HAND, BY_HAND_ROWS, FAUST, FAUST_ROWS, FAUST_CHANGELOG, QUIX, QUIX_DEFAULT)
