"""Speed and memory of Tidemill beside scripts that do the same; never part of the package or the tests."""
