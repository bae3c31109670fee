"""The console: a web page that shows why a number is what it is. It uses only the public HTTP API."""
