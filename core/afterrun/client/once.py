"""A property that is made once, also when many threads ask for it first at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):  # noqa: N801 - it is read as a decorator, as `property` is
    """Like `functools.cached_property`, which since Python 3.12 lets two threads make the value twice: two models.

    The object has a reentrant lock `opening`, which a forked child must replace: another thread may have held it.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: Any, owner: type) -> Self | T:
        """Asked only as long as the object has no attribute of this name: then that is the value."""
        if instance is None:
            return self
        with instance.opening:
            if self._name not in vars(instance):
                vars(instance)[self._name] = self._make(instance)
        value: T = vars(instance)[self._name]
        return value
