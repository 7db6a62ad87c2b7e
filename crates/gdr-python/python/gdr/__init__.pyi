from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, final

from typing_extensions import Buffer

class _Dlpack(Protocol):
    def __dlpack__(self, *, stream: int | None = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

_GpuMemory: TypeAlias = _Dlpack | _CudaArray | tuple[int, int]
_HostMemory: TypeAlias = Buffer | _Dlpack
_Stream: TypeAlias = _TorchStream | _CupyStream | int
_Memory: TypeAlias = _GpuMemory | _HostMemory
_Key: TypeAlias = bytes | str | PathLike[str]

__version__: str

class Error(RuntimeError): ...

class Stalled(Error, TimeoutError):
    name: str
    done: int
    of: int

class NoAnswer(Error, TimeoutError):
    owner: str

class NothingNewer(Error, TimeoutError):
    name: str
    seen: int | None

class Empty(Error):
    name: str

class Gone(Error):
    what: str
    reason: Literal[
        "closed", "server-closed", "restarted", "disconnected", "unreachable", "interrupted"
    ]

class Denied(Error):
    name: str
    permitted: str
    asked: str

class Busy(Error):
    what: str
    reason: Literal[
        "owner-writes",
        "peer-writes",
        "copies-queued",
        "link-in-use",
        "leased",
        "followed",
        "followers-behind",
        "put-too-slow",
    ]

class NoSuchObject(Error, LookupError):
    name: str
    owner: str

def map(memory: _GpuMemory, /) -> Mapping: ...
def probe(memory: _GpuMemory, /) -> dict[str, Any]: ...
def doctor(*arguments: str, timeout: float = 120.0) -> dict[str, Any]: ...
def topology(*arguments: str, timeout: float = 120.0) -> dict[str, Any]: ...
def command_path() -> str: ...
def library_path() -> str: ...

@final
class Mapping:
    def item(self, index: int = 0, /) -> bool | int | float | complex: ...
    def read(
        self, out: _HostMemory | None = None, /, *, offset: int = 0, nbytes: int | None = None
    ) -> Any: ...
    def write(self, src: _HostMemory, /, *, offset: int = 0) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Mapping: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def backend(self) -> str: ...

@final
class Signal:
    def __new__(cls, device: int = 0) -> Signal: ...
    def record(self, stream: _Stream | None = None, /, value: int | None = None) -> int: ...
    def wait(self, value: int | None = None, timeout: float = 30.0) -> None: ...
    @property
    def value(self) -> int: ...
    @value.setter
    def value(self, value: int) -> None: ...
    @property
    def device(self) -> int: ...

@final
class DeviceMemory:
    def __new__(
        cls,
        nbytes: int,
        /,
        *,
        device: int = 0,
        kind: Literal["plain", "pool", "vmm", "vmm-posix-fd"] = "plain",
    ) -> DeviceMemory: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class DeviceSlot:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@final
class Extents:
    def __new__(cls, extents: list[tuple[int, int, int]], /) -> Extents: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Gather:
    def __new__(cls, tensors: list[tuple[_GpuMemory, int]], /) -> Gather: ...
    @property
    def end(self) -> int: ...

@final
class TensorIndex:
    def __new__(
        cls,
        tensors: list[tuple[str, str, list[int]]],
        attributes: dict[str, str] | None = None,
    ) -> TensorIndex: ...
    @property
    def header(self) -> bytes: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tensors(self) -> list[dict[str, Any]]: ...
    @property
    def attributes(self) -> dict[str, str]: ...

@final
class ObjectServer:
    def __new__(
        cls,
        address: str = "127.0.0.1:0",
        *,
        key: _Key | None = None,
        nic: str | None = None,
        limit: int | None = None,
    ) -> ObjectServer: ...
    def object(
        self,
        name: str,
        nbytes: int | None = None,
        *,
        like: _Memory | None = None,
        device: int | None = None,
        mode: str = "latest",
        when_full: Literal["drop-oldest", "block"] | None = None,
        access: Literal["read", "read-write"] = "read",
        checksum: Literal["none", "sum64"] = "none",
    ) -> Object: ...
    def relay(
        self,
        name: str,
        source: str,
        *,
        key: _Key | None = None,
        nic: str | None = None,
        timeout: float = 30.0,
    ) -> Relay: ...
    def close(self) -> None: ...
    def __enter__(self) -> ObjectServer: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def address(self) -> str: ...

@final
class Object:
    def publish_from(
        self, source: _Memory, /, stream: _Stream | None = None, *, timeout: float = 30.0
    ) -> int: ...
    def write_on(
        self,
        write: Callable[[DeviceSlot], None],
        /,
        stream: _Stream | None = None,
        *,
        gather: Gather | None = None,
    ) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Object: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def newest(self) -> int | None: ...
    @property
    def readers(self) -> int: ...
    @property
    def info(self) -> dict[str, Any]: ...

@final
class Link:
    def __new__(
        cls,
        address: str,
        *,
        key: _Key | None = None,
        nic: str | None = None,
        timeout: float = 30.0,
    ) -> Link: ...
    def list(self, *, timeout: float = 30.0) -> list[dict[str, Any]]: ...
    def open(self, name: str, /, *, timeout: float = 30.0) -> RemoteObject: ...
    def memory(self, memory: _Memory, /) -> LocalMemory: ...
    def close(self) -> None: ...
    def __enter__(self) -> Link: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def owner(self) -> str: ...

@final
class LocalMemory:
    def close(self) -> None: ...
    def __enter__(self) -> LocalMemory: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...

@final
class Relay:
    def wait(self, *, timeout: float = 30.0) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Relay: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def newest(self) -> int | None: ...
    @property
    def readers(self) -> int: ...

@final
class RemoteObject:
    def get_into(
        self,
        out: LocalMemory | _Memory,
        /,
        *,
        extents: Extents | None = None,
        timeout: float = 30.0,
    ) -> int: ...
    def get(self, *, timeout: float = 30.0) -> tuple[int, bytes]: ...
    def read_at(
        self, offset: int, out: LocalMemory | _Memory, /, *, timeout: float = 30.0
    ) -> int: ...
    def tensors(self, *, timeout: float = 30.0) -> TensorIndex: ...
    def wait_newer(self, epoch: int | None = None, *, timeout: float = 30.0) -> int: ...
    def put_from(self, source: LocalMemory | _Memory, /, *, timeout: float = 30.0) -> int: ...
    def newest(self, *, timeout: float = 30.0) -> int | None: ...
    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def info(self) -> dict[str, Any]: ...
