"""Chains of deltas: the values of vectors, now and at any instant, compacted without changing a bit."""
