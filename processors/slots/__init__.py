"""The engine that counts slots of concurrency limits: one instance per limit."""
