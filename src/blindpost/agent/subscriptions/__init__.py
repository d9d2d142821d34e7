"""Who receives what: subscriptions as a machine per session, and what keeps them up."""
