"""What every part builds on: transactions, workers, the event stream, suspension."""
