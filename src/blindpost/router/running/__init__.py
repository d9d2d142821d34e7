"""A router as a process: configuration, keys on disk, limits, control socket, metrics, backups, drain."""
