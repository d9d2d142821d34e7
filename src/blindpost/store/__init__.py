"""Where servers keep what must survive: embedded and shared stores, migrations, group commit.

No decisions. A store implements the engine's port: `commit` makes a batch durable or raises.
"""
