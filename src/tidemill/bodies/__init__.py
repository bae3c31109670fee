"""What bodies of requests hold: bytes in, records ready to be made durable out. Pure; no socket, no file."""
