"""Where bytes live: files, Delta tables, the state, locks. Everything durable is written through here."""
