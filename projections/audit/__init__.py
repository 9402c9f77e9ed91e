"""The audit log as rows, in which each row's hash covers the rows before it."""
