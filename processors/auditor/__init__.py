"""Laws of the log that an auditor verifies all the time, as folds over its records."""
