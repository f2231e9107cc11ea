"""Tell errors that the user's code raised while ours ran from failures of ours. Standard library only.

Most of our code runs in threads of ours, which no handler and nobody else reaches. For what runs in the training's
threads, this decides who gets to see an error.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

#: What a question to torch ends in that it does not know, has renamed, refuses, or warns of where warnings are errors.
UNFAMILIAR = (AttributeError, LookupError, TypeError, ValueError, RuntimeError, Warning)

_signal: Any = __import__("_signal")
_OURS = f"{Path(__file__).parents[1]}/"
_LIBRARY = f"{Path(os.__file__).parent}/"
_OF_THE_INTERPRETER = "<frozen "


def raised_by_user(error: BaseException) -> bool:
    """Return whether the user's code raised the error, while our code beneath the calling function ran.

    It may come from a signal handler (a time limit, a preemption, a loader child that died) or from another thread
    (`PyThreadState_SetAsyncExc`). A handler is known by its code, or by the frame that the interpreter hands it: that
    of the code it interrupts, which no ordinary call does. Without a handler's frame, an error of the user's comes out
    of nothing: a class that is neither Python's, torch's nor ours, or without a word, as classes are raised.
    """
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__ and error.__traceback__.tb_next
    frame, handlers = None, _handlers_code()
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or _was_handed_its_caller(frame):
            return True
        trace = trace.tb_next
    return (frame is None or _is_called_by_us(frame)) and _comes_out_of_nothing(error)


def _handlers_code() -> set[object]:
    """Code of the functions that handle signals in this process."""
    handlers = [_signal.getsignal(number) for number in _signal.valid_signals()]
    found = set()
    for one in handlers:
        handler = one
        while isinstance(handler, functools.partial):
            handler = handler.func
        method = vars(type(handler)).get("__call__")  # of an object that can be called
        for function in (handler, getattr(handler, "__func__", None), method):
            found.add(getattr(function, "__code__", None))
    return found - {None}


def _was_handed_its_caller(frame: FrameType) -> bool:
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    variables, names = frame.f_locals, code.co_varnames[:count]
    for name in names:
        given = variables.get(name)
        if given is caller or (type(given) is tuple and any(one is caller for one in given)):
            return True
    # a handler that does not keep the frame deletes it, and still has the signal's number
    deleted = any(name not in variables for name in names)
    return deleted and any(type(variables.get(name)) is int for name in names)


def _is_called_by_us(frame: FrameType) -> bool:
    """Return whether a frame is of our code, or of what we call: Python's library and torch."""
    file, torch = frame.f_code.co_filename, getattr(sys.modules.get("torch"), "__file__", None) or "/nowhere/torch"
    if file.startswith((_OURS, _OF_THE_INTERPRETER, f"{Path(torch).parent}/")):
        return True
    return file.startswith(_LIBRARY) and "-packages/" not in file


def _comes_out_of_nothing(error: Exception) -> bool:
    known = {*sys.stdlib_module_names, "torch", "eroica"}
    if type(error).__module__.partition(".")[0] not in known:
        return True
    return not error.args and not isinstance(error, MemoryError)


def without_us(error: BaseException) -> None:
    """Let the error's traceback begin beneath our functions; those that it still passes are added to it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.__traceback__ = trace
