"""Monitoring of every process: metrics, their text for Prometheus, and health checks over HTTP."""
