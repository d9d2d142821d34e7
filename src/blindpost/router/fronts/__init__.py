"""Front processes: they own a router's connections, and the engine's process decides."""
