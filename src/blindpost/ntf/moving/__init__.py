"""From the database of an ntf-server, and back into one."""
