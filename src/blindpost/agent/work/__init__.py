"""What every part stands on: transactions, workers, events on their way, rest."""
