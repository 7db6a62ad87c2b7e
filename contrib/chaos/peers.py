"""What the jobs of two processes share."""

import os
import sys
import time
from multiprocessing.connection import Client

BYTES = 256 << 10


def pattern(turn):
    """The bytes of a turn."""
    return (turn.to_bytes(4, "little") + bytes((turn + at) % 251 for at in range(60))) * (BYTES // 64)


def place(port):
    """Where the target listens: on the first host of `gdr net`, or on this one."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), int(port)


def connect(place):
    """Connects to the target, which may start later."""
    give_up = time.monotonic() + 20
    while True:
        try:
            return Client(place)
        except ConnectionRefusedError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def turns():
    """Counts turns for two seconds, and up to 100 at least."""
    begin, turn = time.monotonic(), 0
    while turn < 100 or time.monotonic() - begin < 2:
        turn += 1
        yield turn


def wrong_bytes():
    print("WRONG BYTES", flush=True)
    sys.exit(3)
