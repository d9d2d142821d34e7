"""What Blindpost does, shown with real processes on one machine."""
