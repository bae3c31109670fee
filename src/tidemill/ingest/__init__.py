"""How slices come in: which files, what they are, and landing them so that acknowledged means durable."""
