"""What producers send, as types, a module each."""
