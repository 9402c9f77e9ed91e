"""Reports of a child to the benchmark: one JSON object per line on standard output."""

import json
import sys


def report(**fields: object) -> None:
    """Print a report."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
