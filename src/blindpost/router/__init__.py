"""The SMP router: one-way queues, who is subscribed to them, and delivery.

Values in `model`, memory in `state`, decisions in `queues`, `subscriptions`, `delivery`,
`notifications` and `expiry`, the store's tables in `tables`, the shell in `server`.
"""
