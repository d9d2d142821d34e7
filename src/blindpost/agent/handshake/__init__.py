"""How a connection comes to be: joining, confirming, allowing."""
