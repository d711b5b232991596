"""Values as bytes: pickles, captured state of functions, exceptions. Imports no call, future or connection."""
