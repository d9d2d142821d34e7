"""Blindpost: messaging whose servers never learn who talks to whom."""

__version__ = "0.1.0"
