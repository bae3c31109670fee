"""The `tidemill` command. Each command is a few lines over `Mill` and prints through `Session.emit`."""
