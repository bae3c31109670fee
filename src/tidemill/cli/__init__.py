"""The `tidemill` command: each command is a few lines over `Mill`, printed through one of two outputs."""
