"""One round over all streams, and what keeps a warehouse right: verify, recover, retention, events."""
