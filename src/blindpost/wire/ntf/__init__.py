"""The notification protocol on the wire: device tokens, subscriptions, pushes; versions 1 to 3."""
