"""Exceptions of objects, with the details that a program needs to react to them."""

from gdr._gdr import Error


class Stalled(Error, TimeoutError):
    """A transfer did not end before its deadline. As far as is known, the owner's process still runs."""

    def __init__(self, text: str, *, name: str, done: int, of: int) -> None:
        super().__init__(text)
        self.name, self.done, self.of = name, done, of


class NoAnswer(Error, TimeoutError):
    """The owner did not answer a request before the deadline."""

    def __init__(self, text: str, *, owner: str) -> None:
        super().__init__(text)
        self.owner = owner


class NothingNewer(Error, TimeoutError):
    """The owner still runs, but published nothing newer than `seen` before the deadline."""

    def __init__(self, text: str, *, name: str, seen: int | None) -> None:
        super().__init__(text)
        self.name, self.seen = name, seen


class Empty(Error):
    """Nothing has been published to the object."""

    def __init__(self, text: str, *, name: str) -> None:
        super().__init__(text)
        self.name = name


class Gone(Error):
    """The object or its owner no longer exists.

    `reason` is "closed", "server-closed" (the server of an object of this process), "restarted", "disconnected",
    "unreachable" or "interrupted".
    """

    def __init__(self, text: str, *, what: str, reason: str) -> None:
        super().__init__(text)
        self.what, self.reason = what, reason


class Denied(Error):
    """The owner does not permit the request."""

    def __init__(self, text: str, *, name: str, permitted: str, asked: str) -> None:
        super().__init__(text)
        self.name, self.permitted, self.asked = name, permitted, asked


class Busy(Error):
    """Another operation is in progress.

    `reason` is "owner-writes", "peer-writes", "copies-queued", "link-in-use", "leased", "followed",
    "followers-behind" or "put-too-slow".
    """

    def __init__(self, text: str, *, what: str, reason: str) -> None:
        super().__init__(text)
        self.what, self.reason = what, reason


class NoSuchObject(Error, LookupError):
    """The owner has no object with this name that this peer may access."""

    def __init__(self, text: str, *, name: str, owner: str) -> None:
        super().__init__(text)
        self.name, self.owner = name, owner


# Tracebacks name the module from which programs import them.
for _exported in (Stalled, NoAnswer, NothingNewer, Empty, Gone, Denied, Busy, NoSuchObject):
    _exported.__module__ = "gdr"
