"""Workflows written as plain Python: their code is replayed against its history."""
