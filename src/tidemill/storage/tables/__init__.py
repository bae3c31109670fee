"""Delta tables: stage, publish, commit, snapshot, vacuum. The only room that touches a table's files."""
