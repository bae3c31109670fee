"""Finding events by what they hold: the index of raw parts, and the search that uses it."""
