"""The condition language: the filters of `tidemill.yaml`, and WHERE, FILTER and HAVING of a query."""
