"""How processes put, get and map stored objects: the connection to object storage and what hosts share. Knows no
task and no service.
"""
