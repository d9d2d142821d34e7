"""What every server process shares: failures with a remedy, files, keys, logs, control socket, metrics."""
