"""Automatic starts of workflows: rules for deliveries, and schedules."""
