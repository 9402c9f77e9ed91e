"""Types of the payloads that producers send, one module per producer."""
