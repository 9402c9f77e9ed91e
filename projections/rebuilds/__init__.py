"""Rebuilds in Postgres: their state, the rows that differ, and switching all of them at once."""
