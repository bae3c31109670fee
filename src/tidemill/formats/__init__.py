"""How bytes become records: finding them, proving them, reading their columns, judging the unusual ones."""
