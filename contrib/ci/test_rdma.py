"""Examples of tests with RDMA devices: `gdr run -- pytest test_rdma.py`."""

import ctypes


def test_libibverbs_lists_the_devices(rdma_devices):
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    names = [verbs.ibv_get_device_name(ctypes.c_void_p(devices[i])) for i in range(count.value)]
    verbs.ibv_free_device_list(devices)
    assert sorted(name.decode() for name in names) == rdma_devices


def test_bytes_go_from_host_to_host(hosts):
    # The listener may not be there at the first attempt.
    script = """
        run() { gdr loopback --simulate --insecure "$@"; }
        if [ "$RANK" = 0 ]; then run --listen "$MASTER_ADDR"; exit; fi
        for turn in $(seq 100); do run --connect "$MASTER_ADDR" --iterations 1 --size 64K && exit; sleep 0.1; done
        exit 1
    """
    lines = hosts(2, "sh", "-c", script)
    for host in ["host0", "host1"]:
        assert any(line.startswith(f"{host}: PASS") for line in lines), lines
