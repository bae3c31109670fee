"""Everything that is a function of a set of slices; one folder for each kind of output."""
