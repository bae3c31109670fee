"""The console: a web page that shows why a number is what it is. It asks only the public HTTP API."""
