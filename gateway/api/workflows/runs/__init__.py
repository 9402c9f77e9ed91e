"""Runs under `/v1`, for programs that identify a run by its id alone."""
