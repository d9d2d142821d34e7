"""Journals of a fleet that does not exist, with known faults: for demonstrations, tests and any size."""
