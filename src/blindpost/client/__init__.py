"""One connection to one router. Reconnecting, and what a connection means, is the caller's."""
