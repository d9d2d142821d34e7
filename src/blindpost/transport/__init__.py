"""Sessions that carry blocks: TLS, and the same over an in-memory network. No commands."""
