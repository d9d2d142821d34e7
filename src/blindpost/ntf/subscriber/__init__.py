"""The notification router as a client of message routers: one session for each, shared by all devices."""
