"""Evaluation of expressions and schemas in a process with limits of time and memory."""
