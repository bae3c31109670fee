"""The HTTP side of a mill: events come in, answers go out."""
