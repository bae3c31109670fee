"""The index of raw parts: which rows hold which values, for searches."""
