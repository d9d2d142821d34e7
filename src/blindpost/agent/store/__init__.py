"""The agent's tables in SQLite: one module for each group of them."""
