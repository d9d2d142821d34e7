"""What agents send each other through queues, from the outer envelope to the innermost message."""
