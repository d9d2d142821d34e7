"""What agents say to each other through queues, from the outer envelope to the innermost message."""
