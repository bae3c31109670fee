"""What must be remembered besides the tables: ledger, observed hashes, clocks."""
