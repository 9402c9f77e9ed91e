"""The engine that counts the slots of limits of concurrency: one instance for each limit."""
