"""Headwater as a provider: its own system events become deliveries that no client can post."""
