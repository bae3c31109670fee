"""How events come in over the network: a log that makes them durable, windows, and slices made of them."""
