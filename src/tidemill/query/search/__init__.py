"""Search for events by their content, with the index of raw parts."""
