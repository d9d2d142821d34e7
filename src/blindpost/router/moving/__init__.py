"""Moving in and out: from the files of a reference router, into them, and between stores.

Everything that moves is tallied twice, from where it came and from where it went; see `certificate`.
"""
