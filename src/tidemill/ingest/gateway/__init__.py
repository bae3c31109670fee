"""Receives events over the network: a log that makes them durable, windows, and slices made from those."""
