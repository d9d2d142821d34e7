"""Push notifications as a device has them: its token, its subscriptions, and what a push leads to."""
