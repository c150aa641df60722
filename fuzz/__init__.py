"""Bytes that nobody would write, for every codec. `make fuzz` runs it; see CONTRIBUTING.md."""
