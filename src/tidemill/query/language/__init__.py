"""The query text and the search text: what was written as frozen values, and how it is read."""
