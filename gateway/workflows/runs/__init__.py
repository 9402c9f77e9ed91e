"""Runs below `/v1`: for programs that run elsewhere, and know a run by its id alone."""
