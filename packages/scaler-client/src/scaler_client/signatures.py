"""What a callable takes, checked where it is submitted: with the very error that calling it would give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

_POSITIONAL_ONLY = int(inspect.Parameter.POSITIONAL_ONLY)
_PLAIN = int(inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VAR_POSITIONAL = int(inspect.Parameter.VAR_POSITIONAL)
_KEYWORD_ONLY = int(inspect.Parameter.KEYWORD_ONLY)
_VAR_KEYWORD = int(inspect.Parameter.VAR_KEYWORD)
_Parameter = tuple[str, int, bool]
"""Name, kind, whether it has a default."""


class CallCheck(NamedTuple):
    """`check(*args, **kwargs)` raises the TypeError that the callable would; `known` says whether it ever does."""

    check: Callable[..., object]
    known: bool
    takes_profiling: bool


def _anything(*args: object, **kwargs: object) -> None:
    """Takes what a callable without a signature may take."""


UNKNOWN = CallCheck(_anything, known=False, takes_profiling=True)


def check_for(fn: Callable[..., Any]) -> CallCheck:
    """What `fn` itself takes; the signature that a decorator claims for it is not believed."""
    if type(fn) is MethodType:
        inner = check_for(fn.__func__)
        return inner._replace(check=MethodType(inner.check, object())) if inner.known else UNKNOWN
    if type(fn) is FunctionType:
        parameters = tuple(_of_function(fn))
        return _stub(fn.__qualname__, parameters)
    if "__signature__" in getattr(fn, "__dict__", ()) or "__signature__" in vars(type(fn)):
        return UNKNOWN
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (ValueError, TypeError):
        return UNKNOWN
    found = signature.parameters.values()
    parameters = tuple((each.name, int(each.kind), each.default is not each.empty) for each in found)
    return _stub(getattr(fn, "__qualname__", type(fn).__qualname__), parameters)


def _of_function(fn: FunctionType) -> Iterator[_Parameter]:
    code: CodeType = fn.__code__
    names, positional = code.co_varnames, code.co_argcount
    required = positional - len(fn.__defaults__ or ())
    for at in range(positional):
        yield names[at], _POSITIONAL_ONLY if at < code.co_posonlyargcount else _PLAIN, at >= required
    after = positional + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        yield names[after], _VAR_POSITIONAL, False
    for at in range(positional, after):
        yield names[at], _KEYWORD_ONLY, names[at] in (fn.__kwdefaults__ or {})
    if code.co_flags & inspect.CO_VARKEYWORDS:
        yield names[after + bool(code.co_flags & inspect.CO_VARARGS)], _VAR_KEYWORD, False


@lru_cache(1024)
def _stub(qualname: str, parameters: tuple[_Parameter, ...]) -> CallCheck:
    """A function with these parameters that does nothing: Python itself does the checking."""
    words: list[str] = []
    for at, (name, kind, has_default) in enumerate(parameters):
        before = parameters[at - 1][1] if at else None
        if before == _POSITIONAL_ONLY != kind:
            words.append("/")
        if kind == _KEYWORD_ONLY and before not in (_KEYWORD_ONLY, _VAR_POSITIONAL):
            words.append("*")
        stars = "*" * (kind == _VAR_POSITIONAL) + "**" * (kind == _VAR_KEYWORD)
        words.append(f"{stars}{name}=None" if has_default else f"{stars}{name}")
    if parameters and parameters[-1][1] == _POSITIONAL_ONLY:
        words.append("/")
    scope: dict[str, Any] = {}
    try:
        exec(f"def stub({', '.join(words)}): pass", scope)
    except SyntaxError:
        return UNKNOWN
    stub = scope["stub"]
    stub.__qualname__ = qualname
    takes = any(
        kind == _VAR_KEYWORD or (name == "profiling" and kind in (_PLAIN, _KEYWORD_ONLY))
        for name, kind, _ in parameters
    )
    return CallCheck(stub, known=True, takes_profiling=takes)
