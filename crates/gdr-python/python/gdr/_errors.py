"""The exceptions of objects, with what a program needs to react to them."""

from gdr._gdr import Error


class Stalled(Error, TimeoutError):
    """A transfer did not end before its deadline; the owner's process is there as far as is known."""

    def __init__(self, text: str, *, name: str, done: int, of: int) -> None:
        super().__init__(text)
        self.name, self.done, self.of = name, done, of


class NoAnswer(Error, TimeoutError):
    """The owner did not answer a request before the deadline."""

    def __init__(self, text: str, *, owner: str) -> None:
        super().__init__(text)
        self.owner = owner


class NothingNewer(Error, TimeoutError):
    """The owner is there, and published nothing newer than `seen` before the deadline."""

    def __init__(self, text: str, *, name: str, seen: int | None) -> None:
        super().__init__(text)
        self.name, self.seen = name, seen


class Empty(Error):
    """Nothing has been published to the object."""

    def __init__(self, text: str, *, name: str) -> None:
        super().__init__(text)
        self.name = name


class Gone(Error):
    """The object or its owner does not exist any more.

    `reason` is "closed", "server-closed" (the server of an object of this process), "restarted", "disconnected",
    "unreachable" or "interrupted".
    """

    def __init__(self, text: str, *, what: str, reason: str) -> None:
        super().__init__(text)
        self.what, self.reason = what, reason


class Denied(Error):
    """The owner does not permit what was asked."""

    def __init__(self, text: str, *, name: str, permitted: str, asked: str) -> None:
        super().__init__(text)
        self.name, self.permitted, self.asked = name, permitted, asked


class Busy(Error):
    """Another operation is in the way.

    `reason` is "owner-writes", "peer-writes", "copies-queued", "link-in-use", "leased", "followed",
    "followers-behind" or "put-too-slow".
    """

    def __init__(self, text: str, *, what: str, reason: str) -> None:
        super().__init__(text)
        self.what, self.reason = what, reason


class NoSuchObject(Error, LookupError):
    """The owner has no object of this name for this peer."""

    def __init__(self, text: str, *, name: str, owner: str) -> None:
        super().__init__(text)
        self.name, self.owner = name, owner


# Tracebacks name the module from which programs import them.
for _exported in (Stalled, NoAnswer, NothingNewer, Empty, Gone, Denied, Busy, NoSuchObject):
    _exported.__module__ = "gdr"
