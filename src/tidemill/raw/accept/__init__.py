"""From pending slices to accepted events: stage, gate, raw commit, quarantine."""
