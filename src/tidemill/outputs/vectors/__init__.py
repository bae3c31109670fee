"""Chains of deltas: what vectors are, now and at any instant, kept short without changing one bit of them."""
