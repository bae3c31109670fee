"""The query text and the search text: their syntax trees, and how they are parsed."""
