"""Objects in object storage as a client sees them: handles, the store, and how lost objects are rebuilt.

Knows no future and no call.
"""
