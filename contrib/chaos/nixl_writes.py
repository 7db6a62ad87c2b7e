"""NIXL: one agent writes to the memory of another, which compares each byte.

nixl_writes.py target PORT
nixl_writes.py initiator PORT
"""

import ctypes
import sys
import time
from multiprocessing.connection import Listener

from nixl_cu12._api import nixl_agent, nixl_agent_config

from peers import BYTES, connect, pattern, place, turns, wrong_bytes


def main():
    role, target = sys.argv[1], place(sys.argv[2])
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    memory = ctypes.create_string_buffer(BYTES)
    address = ctypes.addressof(memory)
    agent.register_memory([(address, BYTES, 0, "")], "DRAM")
    if role == "target":
        with Listener(target) as listener, listener.accept() as peer:
            peer.send((agent.get_agent_metadata(), address))
            while (turn := peer.recv()) is not None:
                peer.send(memory.raw == pattern(turn))
        return
    peer = connect(target)
    metadata, remote = peer.recv()
    name = agent.add_remote_agent(metadata)
    here = agent.get_xfer_descs([(address, BYTES, 0)], "DRAM")
    there = agent.get_xfer_descs([(remote, BYTES, 0)], "DRAM")
    handle = agent.initialize_xfer("WRITE", here, there, name)
    for turn in turns():
        memory.raw = pattern(turn)
        state = agent.transfer(handle)
        while state == "PROC":
            time.sleep(0.0005)
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"the transfer failed: {state}")
        peer.send(turn)
        if not peer.recv():
            wrong_bytes()
    peer.send(None)
    print(f"{turn} turns, each byte as written", flush=True)


main()
