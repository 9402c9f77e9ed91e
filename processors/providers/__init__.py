"""Producers of deliveries, a package each: how theirs become events and rows."""
