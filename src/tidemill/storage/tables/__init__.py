"""Delta tables: stage, publish, commit, snapshot, vacuum. The only package that touches a table's files."""
