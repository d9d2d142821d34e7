"""The loop that every server here shares: collect, load, verify, decide, commit, release.

It knows nothing about queues. Clock and entropy come in from outside, so that the same decisions run
under a virtual clock.
"""
