"""Values as bytes: pickles, captured state of functions, exceptions. Knows no call, future or connection."""
