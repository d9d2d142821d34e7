"""Sessions with routers, and sending through proxies."""
