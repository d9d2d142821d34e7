"""The web face of a router: a page about the server and a page for every link that names it.

Browsers and SMP clients come to the same port; `doorman` tells them apart by the first message of TLS. The
site is static: it knows the server's settings and nothing of its users, and the part of a link that opens
anything, its fragment, never leaves the browser.
"""
