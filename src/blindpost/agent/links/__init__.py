"""Links: made, read, prepared."""
