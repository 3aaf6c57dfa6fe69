"""What Serinus raises. Every error has an id, and under it a page: ``error.explain()``."""

from __future__ import annotations

import builtins

from . import _core

__all__ = [
    "Error",
    "InputError",
    "InternalError",
    "NotImplementedError",
    "RuntimeError",
    "TypeError",
    "ValueError",
    "error_reference",
    "explain",
]


class Error(Exception):
    """Base of everything that Serinus raises on purpose.

    ``id`` names the page of the error reference, ``argument`` the argument at fault and ``value`` the offending
    value, as text; both are empty where there is none.
    """

    def __init__(self, message: str, id: str = "", argument: str = "", value: str = "") -> None:
        super().__init__(message)
        self.id = id
        self.argument = argument
        self.value = value

    def __reduce__(self):
        return type(self), (str(self), self.id, self.argument, self.value)

    def explain(self) -> str:
        """The error's page: what it means, when it is raised, how to mend it."""
        return explain(self.id)


class ValueError(Error, builtins.ValueError):
    """A value that the caller can mend: a shape, a stride, a range, a combination."""


class TypeError(Error, builtins.TypeError):
    """An argument of a kind that the call does not take."""


class InputError(Error, OSError):
    """A file, trace or dump that cannot be read or written."""


class RuntimeError(Error, builtins.RuntimeError):
    """A sound request that this build, machine or state cannot serve."""


class NotImplementedError(Error, builtins.NotImplementedError):
    """Not offered for this class of object."""


class InternalError(Error, builtins.RuntimeError):
    """A broken invariant of Serinus itself: please report it."""


def error_reference() -> list[dict]:
    """All pages of the error reference, ordered by id."""
    return _core.error_reference()


def explain(what: str | BaseException) -> str:
    """The page of an error, as text: by id, by slug, or by a pasted error line. Raises LookupError where none fits."""
    page = _core.find_error(str(what) if isinstance(what, BaseException) else what)
    if page is None:
        raise LookupError(f"no error of the reference fits {what!r}")
    lines = [f"{page['id']}  {page['title']}", f"{page['exception']}, {page['slug']}", "", f"    {page['message']}"]

    def section(title: str, text: str) -> None:
        lines.extend(["", title, text])

    def code(text: str) -> str:
        return "\n".join("    " + line for line in text.splitlines())

    section("What it means", page["meaning"])
    section("When it is raised", page["trigger"])
    section("Where it comes from", "\n".join(f"- {s}" for s in page["situations"]))
    section("What to do", "\n".join(f"{i}. {s}" for i, s in enumerate(page["solutions"], 1)))
    section("Before", code(page["example_before"]))
    section("After", code(page["example_after"]))
    section("To check beforehand", code(page["guard"]))
    if page["related"]:
        section("Related", ", ".join(page["related"]))
    return "\n".join(lines) + "\n"
