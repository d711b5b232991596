"""How bytes move: links, transport, stored objects, parts of services, worker managers. Knows no tasks."""
