"""Workflows written as plain Python: their code is run again against what is recorded."""
