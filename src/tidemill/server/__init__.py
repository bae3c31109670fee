"""The HTTP API of a mill: events in, answers out."""
