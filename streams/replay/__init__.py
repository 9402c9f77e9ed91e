"""Executes workflow code against its recorded history."""
