"""Connections of our own on every router of a fleet, which measure what users would see."""
