"""The notification router: device tokens, notification subscriptions at SMP routers, push providers."""
