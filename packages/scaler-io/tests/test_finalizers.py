"""when_collected, beside weakref.finalize."""

from __future__ import annotations

import gc
import weakref

from scaler_io.finalizers import when_collected
from support.processes import run_code


class Owner:
    """Something with weak references; all are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owner)

    def __hash__(self) -> int:
        return 1


def test_each_call_is_made_once_when_its_object_is_collected() -> None:
    called: list[tuple[int, str]] = []
    first, second = Owner(), Owner()
    for number, owner in enumerate((first, second)):
        when_collected(owner, lambda number, word: called.append((number, word)), number, "gone")
    assert not called
    del first, owner
    assert called == [(0, "gone")]
    del second
    assert called == [(0, "gone"), (1, "gone")]


def test_nobody_gets_the_object_any_more() -> None:
    found: list[Owner | None] = []
    owner = Owner()
    known = weakref.ref(owner)
    when_collected(owner, lambda: found.append(known()))
    del owner
    assert found == [None]


def test_an_object_in_a_cycle_is_collected_too() -> None:
    called: list[int] = []
    owner = Owner()
    owner.itself = owner  # type: ignore[attr-defined]
    when_collected(owner, called.append, 1)
    del owner
    gc.collect()
    assert called == [1]


def test_a_program_ends_in_silence_while_another_thread_ends_objects() -> None:
    """weakref.finalize says "dictionary changed size during iteration" then."""
    said = run_code(
        """
        import threading, weakref
        from scaler_io.finalizers import when_collected

        class Owner:
            pass

        def end_objects():
            while True:
                when_collected(Owner(), int)
                begun.set()

        others, kept, begun = [Owner()], [Owner() for _ in range(50_000)], threading.Event()
        weakref.finalize(others[0], print, "an object of another library")
        for each in kept:
            when_collected(each, print, "after the end")
        threading.Thread(target=end_objects, daemon=True).start()
        begun.wait()
        """
    )
    assert said == "an object of another library\n"
