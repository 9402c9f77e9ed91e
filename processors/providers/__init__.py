"""Providers, one package per provider: how their deliveries become events and rows."""
