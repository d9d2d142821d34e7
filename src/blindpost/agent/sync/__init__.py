"""Replacing ratchets that no longer fit."""
