"""Which parts of a tensor give which piece of what a reader wants."""

import itertools
import random

import pytest
from gdr._boxes import Box, cover


def points(box):
    """The indices of its elements."""
    return set(itertools.product(*(range(at, at + n) for at, n in zip(box.offset, box.shape))))


def cut(generator, box):
    """Boxes that make up another one, at random."""
    side = generator.randrange(len(box.shape))
    length = box.shape[side]
    if length < 2 or generator.random() < 0.3:
        return [box]
    at = generator.randrange(1, length)
    halves = []
    for begin, end in ((0, at), (at, length)):
        offset, shape = list(box.offset), list(box.shape)
        offset[side] += begin
        shape[side] = end - begin
        halves += cut(generator, Box(tuple(offset), tuple(shape)))
    return halves


def test_every_element_comes_once_whatever_the_cuts_are():
    generator = random.Random(7)
    for _ in range(300):
        shape = tuple(generator.randrange(1, 7) for _ in range(generator.randrange(1, 4)))
        parts = cut(generator, Box.whole(shape))
        # Copies, as of ranks that hold the same.
        parts += [generator.choice(parts)] * generator.randrange(2)
        generator.shuffle(parts)
        for wanted in cut(generator, Box.whole(shape)):
            pieces = cover(wanted, parts)
            for number, piece in pieces:
                assert points(piece) <= points(parts[number])
            found = [point for _, piece in pieces for point in points(piece)]
            assert len(found) == len(set(found)) and set(found) == points(wanted)


def test_scalars_and_tensors_without_elements_are_covered():
    assert cover(Box.whole(()), [Box.whole(())]) == [(0, Box.whole(()))]
    assert cover(Box.whole((0, 4)), []) == []


def test_what_is_missing_or_overlaps_is_refused():
    with pytest.raises(ValueError, match="8 of its 12 elements"):
        cover(Box.whole((3, 4)), [Box((1, 0), (1, 4))])
    with pytest.raises(ValueError, match="overlap"):
        cover(Box.whole((4,)), [Box((0,), (3,)), Box((1,), (3,))])


def test_a_larger_copy_replaces_smaller_ones():
    parts = [Box((0,), (2,)), Box((2,), (2,)), Box((0,), (4,))]
    assert cover(Box.whole((4,)), parts) == [(2, Box.whole((4,)))]


def test_a_part_outside_of_its_tensor_is_seen():
    assert Box((2, 0), (2, 3)).within((4, 3))
    assert not Box((3, 0), (2, 3)).within((4, 3))
    assert not Box((-1, 0), (2, 3)).within((4, 3))
    assert not Box((0,), (2,)).within((4, 3))


def test_a_part_is_read_in_pieces_or_with_what_is_between_them():
    shape = (6, 5, 4)
    for box, (dimension, length), begins in (
        (Box.whole(shape), (0, 120), [0]),
        (Box((2, 0, 0), (3, 5, 4)), (0, 60), [40]),
        (Box((1, 2, 0), (2, 2, 4)), (1, 8), [28, 48]),
        (Box((4, 3, 1), (2, 2, 3)), (2, 3), [93, 97, 113, 117]),
        (Box((0, 0, 0), (0, 5, 4)), (0, 0), []),
    ):
        assert box.run(shape) == (dimension, length)
        if length:
            assert list(box.runs(shape)) == begins
    assert Box((), ()).run(()) == (0, 1) and list(Box((), ()).runs(())) == [0]
    part = Box((4, 3, 1), (2, 2, 3))
    for cost, read in (
        (0, part),
        (0.9, part),
        (5, Box((4, 3, 0), (2, 2, 4))),
        (30, Box((4, 0, 0), (2, 5, 4))),
    ):
        assert part.cheapest(shape, cost) == read, cost


def test_the_pieces_of_a_part_are_its_elements():
    generator = random.Random(8)
    for _ in range(300):
        shape = tuple(generator.randrange(1, 6) for _ in range(generator.randrange(0, 4)))
        box = generator.choice(cut(generator, Box.whole(shape))) if shape else Box((), ())
        _, length = box.run(shape)
        found = [begin + at for begin in box.runs(shape) for at in range(length)]
        elements = itertools.product(*map(range, shape))
        assert found == [at for at, element in enumerate(elements) if element in points(box)]
