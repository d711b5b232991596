"""Checks the arguments of a call at submission; raises the same TypeError that the call would raise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

_POSITIONAL_ONLY = int(inspect.Parameter.POSITIONAL_ONLY)
_PLAIN = int(inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VAR_POSITIONAL = int(inspect.Parameter.VAR_POSITIONAL)
_KEYWORD_ONLY = int(inspect.Parameter.KEYWORD_ONLY)
_VAR_KEYWORD = int(inspect.Parameter.VAR_KEYWORD)
_BUILT_IN = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
_HEAP_TYPE = 1 << 9
"""Flag of classes that are made while a program runs."""
_PLACEHOLDER = getattr(functools, "Placeholder", None)
"""The placeholder of a positional argument in a partial, from Python 3.14 on."""
_CALL_CLASS = type.__dict__["__call__"]
_Parameter = tuple[str, int, bool]
"""Name, kind, whether it has a default."""


class CallCheck(NamedTuple):
    """`check(*args, **kwargs)` raises the TypeError of the callable; if not `known`, it accepts all arguments."""

    check: Callable[..., object]
    known: bool
    takes_profiling: bool


def _anything(*args: object, **kwargs: object) -> None:
    """Accepts any arguments: the check of a callable without a known signature."""


UNKNOWN = CallCheck(_anything, known=False, takes_profiling=True)


def check_for(fn: Callable[..., Any]) -> CallCheck:
    """The check for `fn`, as far as its parameters are certain; `__signature__` and `__wrapped__` are ignored."""
    if type(fn) is FunctionType:
        return _stub(fn.__qualname__, tuple(_of_function(fn)))
    if type(fn) is MethodType:
        return _with_arguments(fn.__func__, fn.__self__)
    if type(fn) is partial:
        return _with_arguments(fn.func, *fn.args, **fn.keywords)
    if isinstance(fn, _BUILT_IN) or (isinstance(fn, type) and not fn.__flags__ & _HEAP_TYPE):
        return _of_built_in(fn)
    call = _found(type(fn), "__call__")
    if type(call) is FunctionType:
        return _with_arguments(call, fn)
    return _of_class(fn) if call is _CALL_CLASS and isinstance(fn, type) else UNKNOWN


def _with_arguments(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallCheck:
    """The check for a callable some of whose arguments are given; keeps their number and names, not their values."""
    inner = check_for(fn)
    if not inner.known:
        return UNKNOWN
    given = [value if value is _PLACEHOLDER else None for value in args]
    check = partial(inner.check, *given, **dict.fromkeys(kwargs))
    return inner._replace(check=check)


def _of_class(cls: type) -> CallCheck:
    """The check for calling a class, if it has a `__new__` or `__init__` written in Python, or neither."""
    new, init = _found(cls, "__new__"), _found(cls, "__init__")
    if new is not object.__dict__["__new__"]:
        new = new.__func__ if type(new) is staticmethod else None
        return _with_arguments(new, cls) if type(new) is FunctionType else UNKNOWN
    if init is object.__dict__["__init__"]:
        return _stub(cls.__qualname__, ())
    return _with_arguments(init, cls) if type(init) is FunctionType else UNKNOWN


def _of_built_in(fn: Callable[..., Any]) -> CallCheck:
    try:
        found = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return UNKNOWN
    parameters = tuple((each.name, int(each.kind), each.default is not each.empty) for each in found)
    return _stub(getattr(fn, "__qualname__", type(fn).__qualname__), parameters)


def _found(cls: type, name: str) -> Any:
    """An attribute of a class or its bases as stored in their dict: no descriptor is called."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


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
    """The check that calls an empty function with these parameters, so that Python itself raises the TypeError."""
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
