"""Rebuilds in Postgres: their state, the rows that differ, and the switch of all rows at once."""
