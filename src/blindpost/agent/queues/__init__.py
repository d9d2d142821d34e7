"""Receive and send queues: made and deleted."""
