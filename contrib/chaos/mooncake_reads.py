"""Mooncake: one process reads the memory of another, and compares each byte.

mooncake_reads.py target PORT
mooncake_reads.py initiator PORT
"""

import ctypes
import os
import sys
from multiprocessing.connection import Listener

from mooncake.engine import TransferEngine

from peers import BYTES, connect, pattern, turns, wrong_bytes


def main():
    role, place = sys.argv[1], ("127.0.0.1", int(sys.argv[2]))
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") != 0:
        sys.exit("the engine does not start")
    memory = ctypes.create_string_buffer(BYTES)
    address = ctypes.addressof(memory)
    if engine.register_memory(address, BYTES) != 0:
        sys.exit("the memory is not registered")
    if role == "target":
        with Listener(place) as listener, listener.accept() as peer:
            peer.send((f"127.0.0.1:{engine.get_rpc_port()}", address))
            while (turn := peer.recv()) is not None:
                memory.raw = pattern(turn)
                peer.send(True)
        return
    peer = connect(place)
    name, remote = peer.recv()
    for turn in turns():
        peer.send(turn)
        peer.recv()
        if engine.transfer_sync_read(name, address, remote, BYTES) != 0:
            print("the transfer failed", flush=True)
            os._exit(1)  # The engine's end waits for the request, too.
        if memory.raw != pattern(turn):
            wrong_bytes()
    peer.send(None)


main()
