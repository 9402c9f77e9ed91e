"""Evaluation of expressions and schemas in a process with time and memory limits."""
