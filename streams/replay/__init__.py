"""Runs the code of a workflow against what is recorded of it."""
