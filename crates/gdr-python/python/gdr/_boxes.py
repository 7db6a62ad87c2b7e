"""Parts of tensors: boxes within a global shape, and how existing boxes cover the wanted ones."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A part of a tensor: its start and length along each dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Iterable[int]) -> "Box":
        """Returns the box that is all of a tensor of this shape."""
        shape = tuple(shape)
        return cls((0,) * len(shape), shape)

    def count(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def within(self, shape: Sequence[int]) -> bool:
        """Returns whether the box fits in a tensor of this shape."""
        return len(shape) == len(self.shape) == len(self.offset) and all(
            0 <= at and 0 <= length and at + length <= whole
            for at, length, whole in zip(self.offset, self.shape, shape)
        )

    def common(self, other: "Box") -> "Box | None":
        """Returns the intersection; None if it is empty."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = (
            min(at + length, other_at + other_length)
            for at, length, other_at, other_length in zip(
                self.offset, self.shape, other.offset, other.shape
            )
        )
        shape = tuple(end - at for end, at in zip(ends, offset))
        return None if any(length <= 0 for length in shape) else Box(offset, shape)

    def inside(self, of: "Box") -> "Box":
        """Returns this box relative to another box that contains it."""
        return Box(tuple(at - outer for at, outer in zip(self.offset, of.offset)), self.shape)

    def slices(self, of: "Box") -> tuple[slice, ...]:
        """Returns the slices that select this box within another one."""
        inside = self.inside(of)
        return tuple(slice(at, at + length) for at, length in zip(inside.offset, self.shape))

    def run(self, shape: Sequence[int]) -> tuple[int, int]:
        """In a tensor of this shape in C order: along how many dimensions it is not in one piece, and the
        elements of each piece."""
        length = 1
        for dimension in reversed(range(len(shape))):
            length *= self.shape[dimension]
            if self.shape[dimension] != shape[dimension]:
                return dimension, length
        return 0, length

    def runs(self, shape: Sequence[int]) -> Iterator[int]:
        """Where its pieces begin in a tensor of this shape: as many elements are before each."""
        outer, _ = self.run(shape)
        strides = [1] * len(shape)
        for dimension in reversed(range(len(shape) - 1)):
            strides[dimension] = strides[dimension + 1] * shape[dimension + 1]
        first = sum(at * stride for at, stride in zip(self.offset, strides))
        steps = (range(0, length * stride, stride) for length, stride in zip(self.shape[:outer], strides))
        return (first + sum(steps) for steps in itertools.product(*steps))

    def cheapest(self, shape: Sequence[int], cost: float) -> "Box":
        """What is best read of a tensor of this shape for this part: it alone, or all along its last
        dimensions, where each piece costs as much as so many elements."""
        best, least = self, float("inf")
        for kept in range(len(shape), -1, -1):
            box = Box(
                (*self.offset[:kept], *(0 for _ in shape[kept:])), (*self.shape[:kept], *shape[kept:])
            )
            _, length = box.run(shape)
            price = box.count() + cost * (box.count() // max(length, 1))
            if price < least:
                best, least = box, price
        return best


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
