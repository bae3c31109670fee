"""One round over all streams, and the upkeep of a warehouse: verify, recover, retention, events."""
