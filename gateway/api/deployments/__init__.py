"""Deployments of apps: creating, activating, rolling back and listing them."""
