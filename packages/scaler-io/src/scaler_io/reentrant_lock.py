"""ReentrantLock: a `threading.RLock` that a signal handler which raises never leaves locked."""

from __future__ import annotations

import sys
import threading

if sys.version_info < (3, 14):
    ReentrantLock = threading.RLock
else:
    from _thread import RLock

    class ReentrantLock(RLock):
        """Released also if a signal handler raises as `with` enters it.

        Since CPython 3.14 `with` calls `__enter__` in an instruction of its own, and handlers run as that call ends:
        the lock is taken, the block has not begun, and nothing would release it. A handler does not run as a function
        of Python returns.
        """

        def __enter__(self) -> bool:
            before = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > before:
                    self.release()
                raise
