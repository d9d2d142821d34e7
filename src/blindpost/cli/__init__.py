"""The command `blindpost`, for people and scripts: it parses, asks and prints, and decides nothing."""
