"""Slices to accepted rows: accept, quarantine, retract, replay, retry, compaction, tail."""
