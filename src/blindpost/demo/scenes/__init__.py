"""One module for each scene: what is done, and the figures that show it."""
