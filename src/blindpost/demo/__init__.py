"""What Blindpost does, shown with real processes on one machine.

`stage` has the servers, `people` the agents, and each scene is a module with one function; `story` plays them
in order and adds up the figures.
"""
