"""gdr.Signal: numbers that a stream writes and Python waits for."""

import threading

import gdr
import pytest
from conftest import LIMIT_S


def test_a_recorded_number_arrives_and_counts_up():
    signal = gdr.Signal()
    assert (signal.value, signal.device) == (0, 0)
    signal.wait(timeout=0)
    assert [signal.record(), signal.record(None)] == [1, 2]
    signal.wait(timeout=LIMIT_S)
    signal.wait(1, timeout=LIMIT_S)
    assert signal.value == 2
    assert signal.record(0, value=40) == 40
    assert signal.record() == 41
    signal.wait(41, timeout=LIMIT_S)


def test_a_wait_for_what_does_not_come_ends_at_its_deadline():
    signal = gdr.Signal()
    signal.record()
    with pytest.raises(TimeoutError, match="has 1 and not 2"):
        signal.wait(2, timeout=0.01)
    for wrong in [-1.0, float("nan"), float("inf")]:
        with pytest.raises(ValueError, match="not a time|too long"):
            signal.wait(2, timeout=wrong)


def test_a_wait_lets_other_threads_run_and_sees_their_record():
    signal = gdr.Signal()
    waiting = threading.Event()

    def record():
        waiting.wait(LIMIT_S)
        signal.record()

    thread = threading.Thread(target=record)
    thread.start()
    waiting.set()
    # Would raise TimeoutError if it kept the interpreter's lock.
    signal.wait(1, timeout=LIMIT_S)
    thread.join(LIMIT_S)


def test_a_number_that_wraps_around_is_later():
    signal = gdr.Signal()
    signal.record(value=2**32 - 1)
    assert signal.record() == 0
    signal.wait(2**32 - 1, timeout=LIMIT_S)
    signal.wait(0, timeout=LIMIT_S)


def test_a_number_can_be_set_before_a_graph_is_replayed():
    signal = gdr.Signal()
    signal.record(value=7)
    signal.value = 0
    with pytest.raises(TimeoutError):
        signal.wait(7, timeout=0.01)
    signal.record(value=7)
    signal.wait(7, timeout=LIMIT_S)


def test_signals_do_not_share_a_number():
    signals = [gdr.Signal(device=number % 2) for number in range(200)]
    for number, signal in enumerate(signals):
        signal.record(value=number + 1)
    assert [signal.value for signal in signals] == list(range(1, 201))
    del signals
    assert gdr.Signal().value == 0


def test_what_is_not_a_stream_or_a_gpu_is_refused():
    signal = gdr.Signal()

    class Torch:
        cuda_stream = 0

    class Cupy:
        ptr = 0

    assert [signal.record(Torch()), signal.record(Cupy())] == [1, 2]
    with pytest.raises(TypeError, match="not a CUDA stream"):
        signal.record("stream")
    with pytest.raises(gdr.Error, match="CUDA_ERROR_INVALID_HANDLE"):
        signal.record(12345)
    assert signal.value == 2
    with pytest.raises(ValueError, match="GPU 9 does not exist"):
        gdr.Signal(9)
