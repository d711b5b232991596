"""Parts that server programs share: command line, options, logs, start, end, and the loop that serves links.

This folder knows nothing of stored objects.
"""
