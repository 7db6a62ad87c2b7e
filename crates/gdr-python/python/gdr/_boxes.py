"""Parts of tensors: boxes of a global shape, and how those that exist cover those that are wanted."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A part of a tensor: where it begins and how long it is, along each dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Iterable[int]) -> "Box":
        """All of a tensor of this shape."""
        shape = tuple(shape)
        return cls((0,) * len(shape), shape)

    def count(self) -> int:
        """Elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def within(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape has the part."""
        return len(shape) == len(self.shape) == len(self.offset) and all(
            0 <= at and 0 <= length and at + length <= whole
            for at, length, whole in zip(self.offset, self.shape, shape)
        )

    def common(self, other: "Box") -> "Box | None":
        """What both have; None without elements."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = (
            min(at + length, other_at + other_length)
            for at, length, other_at, other_length in zip(
                self.offset, self.shape, other.offset, other.shape
            )
        )
        shape = tuple(end - at for end, at in zip(ends, offset))
        return None if any(length <= 0 for length in shape) else Box(offset, shape)

    def slices(self, of: "Box") -> tuple[slice, ...]:
        """Where this part is inside of another one."""
        return tuple(
            slice(at - outer, at - outer + length)
            for at, length, outer in zip(self.offset, self.shape, of.offset)
        )


def cover(wanted: Box, parts: Sequence[Box]) -> list[tuple[int, Box]]:
    """Which parts give which piece of what is wanted: each element once, by the first part that has it.

    Parts may overlap as copies do, where one is inside of another or they are equal. Raises ValueError if
    elements are missing, or parts overlap otherwise.
    """
    pieces: list[tuple[int, Box]] = []
    for number, part in enumerate(parts):
        piece = part.common(wanted)
        if piece is None or any(piece.common(other) == piece for _, other in pieces):
            continue
        kept = [(at, other) for at, other in pieces if other.common(piece) != other]
        if any(piece.common(other) for _, other in kept):
            raise ValueError("parts of it overlap without being copies of each other")
        pieces = [*kept, (number, piece)]
    missing = wanted.count() - sum(piece.count() for _, piece in pieces)
    if missing:
        raise ValueError(f"{missing} of its {wanted.count()} elements are published by no owner")
    return pieces
