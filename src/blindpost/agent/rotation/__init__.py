"""Moving a connection to other queues."""
