"""Deployments of code: taken, activated, rolled back and shown."""
