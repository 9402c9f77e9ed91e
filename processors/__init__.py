"""Decisions: pure functions and folds over the records of `schemas`."""
