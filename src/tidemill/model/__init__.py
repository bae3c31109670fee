"""The words of Tidemill as frozen types and pure rules. Imports nothing else of the package."""
