"""One mergeable accumulator for each kind of metric."""
