"""Aggregation windows and their datasets: what they are made of, when they are ready, how they are built."""
