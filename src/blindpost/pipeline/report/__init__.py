"""The operator's report: one HTML file with everything in it, no script, no request, light and dark."""
