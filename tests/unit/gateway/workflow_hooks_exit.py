"""Hooks in a script that ends whoever imports it."""

raise SystemExit(2)
