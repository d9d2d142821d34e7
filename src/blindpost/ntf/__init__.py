"""The notification router: device tokens, notification subscriptions at SMP routers, push providers.

Values in `model`, status machines in `machines`, what both halves ask of each other in `ports`. Inside are
the rules in `tokens`, `subscriptions`, `ledger`, `pushes` and `outcomes`, the stores in `tables_*`, the
engine's side in `plan`, sockets in `server`, the process in `process`. Outside are `push` and `subscriber`.
"""
