"""Our own connections on every router of a fleet, which measure what users would see.

`settings` is the file, `book` knows what happened to every message, `nodes` has the agents and their
connections, `process` runs them and writes the journal.
"""
