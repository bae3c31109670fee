"""What the command line and the API both say, as plain data: one shape, one spelling, for either of them.

Only spells: nothing here decides, reads a table or knows a terminal.
"""
