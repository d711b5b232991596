"""What server programs share: command line, options, logs, start, end, and the loop that serves links. Knows nothing of
objects.
"""
