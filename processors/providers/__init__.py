"""Providers, one package each: how their deliveries become events and rows."""
