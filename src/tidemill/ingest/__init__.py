"""Lands slices: finds files, recognises their format, and makes them durable before they are acknowledged."""
