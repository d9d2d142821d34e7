"""Duplex, end-to-end encrypted connections over SMP routers, for Python programs."""
