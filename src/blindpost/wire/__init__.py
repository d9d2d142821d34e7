"""Bytes to frozen values and back: no sockets, no clocks, no randomness, no keys in use.

Every decoder here either returns a value or raises `WireError`; nothing else can come out of it,
whatever bytes go in.
"""
