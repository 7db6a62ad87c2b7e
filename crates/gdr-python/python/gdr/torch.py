"""Weights of PyTorch models: one process publishes them, others pull them, whole.

    publisher = gdr.torch.publish(model, "policy")        # the trainer
    publisher.push(step)                                  # after each step, on its stream

    gdr.torch.pull("127.0.0.1:4791/policy", into=model)   # an engine, once
    for step in gdr.torch.follow("127.0.0.1:4791/policy", into=model):
        ...                                               # or whenever there are newer ones

All tensors of a push belong together: a pull never mixes two of them. A push waits for no reader.
Ranks that each hold a part of the model publish their parts (DTensor, or `parts`), and a reader names
all of them; its own parts may be others.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from gdr._boxes import Box, cover
from gdr._gdr import DeviceSlot, Error, Extents, Gather, ObjectServer, Link, LocalMemory, RemoteObject, TensorIndex
from gdr._errors import NothingNewer

__all__ = ["Publisher", "Reader", "Relay", "follow", "publish", "pull", "relay"]

# The tensor that has the step of a push.
_STEP = "gdr.step"
# How many bytes move in the time that an extent costs: 2.4 us at 4 GB/s between two processes of one host, and
# between two GPUs a copy by itself at 150 GB/s.
_READ = {"cpu": 8 << 10, "cuda": 256 << 10}
# Where an extent begins in memory that does not follow the one before it.
_ALIGNMENT = 256
# The attribute with the parts that are not whole tensors: {name: [global shape, offset]}.
_PARTS = "gdr.parts"

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
for _type, _name in (("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"), ("float8_e8m0fnu", "F8_E8M0")):
    if hasattr(torch, _type):
        _NAMES[getattr(torch, _type)] = _name
_TYPES = {name: dtype for dtype, name in _NAMES.items()}

_State = torch.nn.Module | Mapping[str, torch.Tensor]
# For tensors that are parts: the shape of the whole, and where the part begins in it.
_Parts = Mapping[str, tuple[Sequence[int], Sequence[int]]]


class _Local(NamedTuple):
    """A tensor of this process, and the part of a global tensor that it is."""

    tensor: torch.Tensor
    whole: tuple[int, ...]
    box: Box


def _locals(state: _State, parts: _Parts | None) -> dict[str, _Local]:
    """Returns the tensors of a model or a dict, after checking them."""
    tensors = state.state_dict() if isinstance(state, torch.nn.Module) else state
    found = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor: leave it out")
        if name == _STEP:
            raise ValueError(f"{name} is the name of the step: rename the tensor")
        found[name] = _local(name, tensor, parts)
    for name in parts or ():
        if name not in found:
            raise ValueError(f"parts names {name}, and there is no such tensor")
    if not found:
        raise ValueError("there are no tensors: pass a model or a dict that has some")
    places = {local.tensor.device for local in found.values()}
    if len(places) > 1:
        common = max(places, key=lambda place: sum(it.tensor.device == place for it in found.values()))
        name = next(name for name, it in found.items() if it.tensor.device != common)
        raise ValueError(
            f"{name} is on {found[name].tensor.device}, and other tensors on {common}: move all to one device"
        )
    return found


def _local(name: str, tensor: torch.Tensor, parts: _Parts | None) -> _Local:
    """Returns one tensor, after checking it."""
    box = None
    whole: tuple[int, ...] = tuple(tensor.shape)
    if hasattr(tensor, "to_local") and hasattr(tensor, "placements"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        for placement in tensor.placements:
            if placement.is_partial():
                raise ValueError(f"{name} is a partial sum of ranks: redistribute it first")
        shape, offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )
        box = Box(tuple(offset), tuple(shape))
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on the meta device and has no elements: materialize it first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"{name} is not a dense tensor: convert it first")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}: move it to a CUDA device or the CPU")
    if tensor.dtype not in _NAMES:
        raise ValueError(f"{name} has elements of {tensor.dtype}, which safetensors does not have: cast it")
    if parts and name in parts:
        whole_of, offset = parts[name]
        whole, box = tuple(whole_of), Box(tuple(offset), tuple(tensor.shape))
        if not box.within(whole):
            raise ValueError(f"{name} of shape {list(box.shape)} at {list(box.offset)} is not within {list(whole)}")
    return _Local(tensor, whole, box or Box.whole(tensor.shape))


class _Watched:
    """The tensors of a model or a dict. They are inspected again only if one was replaced.

    A model has hundreds of tensors, and its state_dict() takes longer than the GPU takes to copy them.
    """

    def __init__(self, state: _State, parts: _Parts | None) -> None:
        self._state, self._parts = state, parts
        self._look()

    def _look(self) -> None:
        self.found = _locals(self._state, self._parts)
        holders = _holders(self._state)
        self._seen: list[tuple[dict[str, Any], str, Any, int]] | None = None
        if holders.keys() == self.found.keys():
            seen = [(holder, key, holder[key]) for holder, key in holders.values()]
            self._seen = [(*it, _address(it[2])) for it in seen]

    def changed(self) -> bool:
        """Checks whether a tensor was replaced or moved, and if so inspects all of them."""
        seen = self._seen
        if seen is not None and all(
            holder.get(key) is tensor and _address(tensor) == address
            for holder, key, tensor, address in seen
        ) and self._count() == len(seen):
            return False
        self._look()
        return True

    def _count(self) -> int:
        return len(self._seen or ()) if isinstance(self._state, torch.nn.Module) else len(self._state)


def _holders(state: _State) -> dict[str, tuple[Any, str]]:
    """Returns where each tensor is held: a dict and a key in it."""
    if not isinstance(state, torch.nn.Module):
        return {name: (state, name) for name in state}
    holders = {}
    for path, module in state.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if tensor is not None and key not in module._non_persistent_buffers_set:
                    holders[prefix + key] = (held, key)
    return holders


def _address(tensor: Any) -> int:
    """Returns where the elements of this rank are."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).data_ptr()


def _view(memory: torch.Tensor, at: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Returns the tensor that begins at this byte of memory."""
    nbytes = Box.whole(shape).count() * dtype.itemsize
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype, device=memory.device)
    return memory[at : at + nbytes].view(dtype).view(tuple(shape))


def _copy(to: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """Copies and casts tensors with few kernels."""
    if to:
        with torch.no_grad():
            torch._foreach_copy_(to, source)


class _Closing:
    """A value that a `with` block closes on exit."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self.close()


class _Owner(_Closing):
    """Something served by its own server, or by one that also serves other objects."""

    def __init__(self, listen: str | ObjectServer, key: Any, nic: str | None, limit: int | None) -> None:
        self._owns_server = not isinstance(listen, ObjectServer)
        if isinstance(listen, ObjectServer) and limit is not None:
            raise ValueError("limit belongs to the server: pass it to the gdr.ObjectServer that listens")
        self._server = (
            listen if isinstance(listen, ObjectServer) else ObjectServer(listen, key=key, nic=nic, limit=limit)
        )

    def _end_server(self) -> None:
        if self._owns_server:
            self._server.close()


class Publisher(_Owner):
    """Weights that this process publishes. Created by publish()."""

    def __init__(
        self,
        state: _State,
        name: str,
        *,
        listen: str | ObjectServer,
        key: Any = None,
        nic: str | None = None,
        limit: int | None = None,
        parts: _Parts | None = None,
        checksum: str = "none",
    ) -> None:
        self._watched = _Watched(state, parts)
        found = self._watched.found
        self._device = next(iter(found.values())).tensor.device
        described = [(name, _NAMES[it.tensor.dtype], list(it.tensor.shape)) for name, it in found.items()]
        boxes = {
            name: [list(it.whole), list(it.box.offset)]
            for name, it in found.items()
            if it.box != Box.whole(it.whole)
        }
        attributes = {"format": "pt", _PARTS: json.dumps(boxes, separators=(",", ":"))}
        self._index = TensorIndex([*described, (_STEP, "I64", [])], attributes)
        super().__init__(listen, key, nic, limit)
        try:
            self._object = self._server.object(
                name,
                self._index.nbytes,
                device=self._device.index if self._device.type == "cuda" else None,
                checksum=checksum,
            )
        except BaseException:
            self._end_server()
            raise
        self._header = torch.frombuffer(bytearray(self._index.header), dtype=torch.uint8)
        self._header = self._header.to(self._device)
        # What is copied by one kernel, and the names and tensors of the rest; None until they are checked.
        self._plan: tuple[Gather | None, list[str], list[torch.Tensor]] | None = None
        # The tensors in each slot of GPU memory by its address; in host memory the one slab.
        self._slots: dict[int, dict[str, torch.Tensor]] = {}
        self._slab: torch.Tensor | None = None
        if self._device.type == "cpu":
            self._slab = torch.empty(self._index.nbytes, dtype=torch.uint8)

    def push(self, step: int = 0, *, stream: Any = None, timeout: float = 30.0) -> int:
        """Publishes the current weights, and returns the number of the epoch.

        Of weights on a GPU the copy is queued on the current stream, or on `stream`, and nothing is
        waited for: later work on that stream may change them.

        `step` is what readers get with the weights. Readers of several owners tell by it which pushes belong
        together, so owners that each have a part give every push another one.
        """
        if self._watched.changed() or self._plan is None:
            # What is refused now is refused until it is mended.
            self._plan = None
            self._plan = self._checked()
        gather, names, tensors = self._plan
        if self._slab is not None:
            self._fill(self._slab, 0, names, tensors, step)
            return self._object.publish_from(self._slab, timeout=timeout)
        stream = stream or torch.cuda.current_stream(self._device)
        with torch.cuda.stream(stream):
            # A stream of its own address is as good as the object that PyTorch makes anew each time.
            return self._object.write_on(
                lambda slot: self._fill_slot(slot, names, tensors, step), stream.cuda_stream, gather=gather
            )

    def _checked(self) -> tuple[Gather | None, list[str], list[torch.Tensor]]:
        """How the tensors are copied, which have the names, shapes and types of those that were published first."""
        found = self._watched.found
        entries = {entry["name"]: entry for entry in self._index.tensors}
        del entries[_STEP]
        if found.keys() != entries.keys():
            changed = sorted(found.keys() ^ entries.keys())
            raise ValueError(f"{', '.join(changed)} came or went since publish(): publish again")
        for name, it in found.items():
            entry = entries[name]
            if list(it.tensor.shape) != entry["shape"] or _NAMES[it.tensor.dtype] != entry["dtype"]:
                raise ValueError(f"{name} changed its shape or type since publish(): publish again")
            if it.tensor.device != self._device:
                raise ValueError(f"{name} moved to {it.tensor.device} since publish(): publish again")
        if self._slab is not None:
            return None, list(found), [it.tensor for it in found.values()]
        whole, rest = [], []
        for name, it in found.items():
            if it.tensor.is_contiguous() and it.tensor.numel():
                whole.append((it.tensor.view(-1).view(torch.uint8), entries[name]["offset"]))
            else:
                rest.append(name)
        return Gather(whole) if whole else None, rest, [found[name].tensor for name in rest]

    def _fill_slot(
        self, slot: DeviceSlot, names: list[str], tensors: list[torch.Tensor], step: int
    ) -> None:
        self._fill(torch.as_tensor(slot, device=self._device), slot.address, names, tensors, step)

    def _fill(
        self, memory: torch.Tensor, key: int, names: list[str], tensors: list[torch.Tensor], step: int
    ) -> None:
        views = self._slots.get(key)
        if views is None:
            # The header is the same in each epoch.
            memory[: len(self._header)].copy_(self._header)
            views = self._slots[key] = {
                entry["name"]: _view(memory, entry["offset"], _TYPES[entry["dtype"]], entry["shape"])
                for entry in self._index.tensors
            }
        with torch.no_grad():
            views[_STEP].fill_(step)
        _copy([views[name] for name in names], tensors)

    def close(self) -> None:
        """Ends it: readers get gdr.Gone. Further calls do nothing."""
        self._object.close()
        self._slots.clear()
        self._end_server()

    @property
    def source(self) -> str:
        """The source that readers pass: address, port and name."""
        return f"{self._server.address}/{self._object.name}"

    @property
    def nbytes(self) -> int:
        """Number of bytes per push."""
        return self._index.nbytes

    @property
    def readers(self) -> int:
        """How many links have it open."""
        return self._object.readers


def publish(
    state: _State,
    name: str,
    *,
    listen: str | ObjectServer = "127.0.0.1:0",
    key: Any = None,
    nic: str | None = None,
    limit: int | None = None,
    parts: _Parts | None = None,
    checksum: str = "none",
) -> Publisher:
    """Offers the weights of a module, or a dict of tensors, under a name; push() publishes them.

    `listen` is the address and port, or a gdr.ObjectServer that serves more. `parts` says which tensors are parts
    of larger ones: {name: (global shape, offset)}; of a DTensor it is known. `key`, `nic` and `limit`, bytes in
    a second to all readers together, as for gdr.ObjectServer, `checksum` as for ObjectServer.object().
    """
    return Publisher(
        state, name, listen=listen, key=key, nic=nic, limit=limit, parts=parts, checksum=checksum
    )


class Relay(_Owner):
    """Weights that another process publishes, served by this one. Created by relay()."""

    def __init__(
        self,
        source: str,
        name: str | None,
        *,
        listen: str | ObjectServer,
        key: Any,
        nic: str | None,
        limit: int | None,
        timeout: float,
    ) -> None:
        super().__init__(listen, key, nic, limit)
        try:
            name = name or source.partition("/")[2]
            self._relay = self._server.relay(name, source, key=key, nic=nic, timeout=timeout)
        except BaseException:
            self._end_server()
            raise

    def wait(self, *, timeout: float = 30.0) -> None:
        """Waits until the owner is gone, and raises the error that says so; returns after `timeout` seconds."""
        self._relay.wait(timeout=timeout)

    def close(self) -> None:
        """Ends it: readers get gdr.Gone. Further calls do nothing."""
        self._relay.close()
        self._end_server()

    @property
    def source(self) -> str:
        """The source that readers pass: address, port and name."""
        return f"{self._server.address}/{self._relay.name}"

    @property
    def newest(self) -> int | None:
        """The newest epoch that it offers; None before the first one, and after its end."""
        return self._relay.newest

    @property
    def readers(self) -> int:
        """How many links have it open."""
        return self._relay.readers


def relay(
    source: str,
    name: str | None = None,
    *,
    listen: str | ObjectServer = "127.0.0.1:0",
    key: Any = None,
    nic: str | None = None,
    limit: int | None = None,
    timeout: float = 30.0,
) -> Relay:
    """Serves what another process publishes: each push is pulled once, into host memory, and readers pull it
    from here, under `name`. Relays of relays make a tree.

    An owner that does not answer for `timeout` seconds is taken as gone; once it is, readers get gdr.Gone.
    `key` is for both sides, the rest as for publish().
    """
    return Relay(source, name, listen=listen, key=key, nic=nic, limit=limit, timeout=timeout)


class _Source:
    """One owner's object, and memory of this process to read it into."""

    def __init__(self, link: Link, remote: RemoteObject, timeout: float) -> None:
        self.remote = remote
        self.index = remote.tensors(timeout=timeout)
        self.link = link
        self.epoch: int | None = None
        # What is read of the tensors: by name, and the part.
        self.views: dict[tuple[str, Box], torch.Tensor] = {}
        self.memory: LocalMemory | None = None
        self.extents: Extents | None = None
        self._step: torch.Tensor | None = None
        self._entries = {entry["name"]: entry for entry in self.index.tensors}
        try:
            parts = json.loads(self.index.attributes.get(_PARTS, "{}"))
            self.boxes = {
                entry["name"]: self._box(entry, parts.get(entry["name"])) for entry in self.index.tensors
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{remote.name} describes parts that are not valid: {error}") from error

    @staticmethod
    def _box(entry: dict[str, Any], part: Any) -> tuple[tuple[int, ...], Box]:
        """Returns the shape of the whole tensor, and the part that this owner has."""
        if part is None:
            return tuple(entry["shape"]), Box.whole(entry["shape"])
        whole, offset = (tuple(int(length) for length in row) for row in part)
        box = Box(offset, tuple(entry["shape"]))
        if not box.within(whole):
            raise ValueError(f"{entry['name']} at {list(offset)} is not within {list(whole)}")
        return whole, box

    def best(self, name: str, box: Box, device: torch.device) -> Box:
        """Returns what to read of a tensor for a part of it."""
        entry = self._entries[name]
        dtype = _TYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{name} has elements of {entry['dtype']}, which PyTorch does not have")
        return box.cheapest(entry["shape"], _READ[device.type] / dtype.itemsize)

    def allocate(self, wanted: Iterable[tuple[str, Box]], device: torch.device) -> None:
        """Allocates memory for parts of the tensors. Parts that are adjacent in the object stay adjacent."""
        wanted = set(wanted)
        if _STEP in self._entries:
            wanted.add((_STEP, Box((), ())))
        header, end = len(self.index.header), self.remote.nbytes
        gets = []
        for name, box in wanted:
            entry, dtype = self._entries[name], _TYPES[self._entries[name]["dtype"]]
            _, length = box.run(entry["shape"])
            if length:
                begins = [entry["offset"] + at * dtype.itemsize for at in box.runs(entry["shape"])]
                gets.append((begins, length * dtype.itemsize, dtype.itemsize, name, box))
        if sum(len(begins) * nbytes for begins, nbytes, *_ in gets) == self.index.nbytes - header:
            # All of it, so that the checksum can be compared.
            gets.append(([0], header, 1, "", Box((), ())))
            if end > self.index.nbytes:
                gets.append(([self.index.nbytes], end - self.index.nbytes, 1, "", Box((), ())))
        extents: list[tuple[int, int, int]] = []
        places = {}
        # The first tensor behind a header is aligned.
        to = -header % _ALIGNMENT
        for begins, nbytes, alignment, name, box in sorted(gets, key=lambda get: get[0][0]):
            goes_on = bool(extents) and begins[0] == extents[-1][0] + extents[-1][1]
            if (extents and not goes_on) or to % alignment:
                to += -to % _ALIGNMENT
            places[name, box] = to
            for begin in begins:
                last = extents[-1] if extents else (0, 0, 0)
                if (begin, to) == (last[0] + last[1], last[2] + last[1]) and extents:
                    extents[-1] = (last[0], last[1] + nbytes, last[2])
                else:
                    extents.append((begin, nbytes, to))
                to += nbytes
        slab = torch.empty(max(to, 1), dtype=torch.uint8, device=device)
        for name, box in wanted:
            dtype = _TYPES[self._entries[name]["dtype"]]
            self.views[name, box] = _view(slab, places.get((name, box), 0), dtype, box.shape)
        self._step = self.views.get((_STEP, Box((), ())))
        self.extents = Extents(extents)
        self.memory = self.link.memory(slab)

    def get(self, timeout: float) -> None:
        """Reads the newest epoch."""
        self.epoch = self.remote.get_into(self.memory, extents=self.extents, timeout=timeout)

    def step(self) -> int | None:
        """Returns the step of the last epoch read; None for a file."""
        return None if self._step is None else int(self._step.item())


class Reader(_Closing):
    """Repeatedly pulls published weights into the same tensors.

    `source` is "HOST:PORT/NAME", or a list with one for each owner that has a part. `into` is a module or a
    dict, whose tensors are overwritten in place and cast to their types; None makes new ones on `device`,
    of `dtype` if that is given. `mapping` gives the published name for each name of `into`: a dict, or a
    function. `parts` as for publish(), for `into`.

    The memory for it is registered once. Only one thread may use a reader.
    """

    def __init__(
        self,
        source: str | Sequence[str],
        into: _State | None = None,
        *,
        mapping: Mapping[str, str] | Callable[[str], str] | None = None,
        parts: _Parts | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        key: Any = None,
        nic: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        names = [source] if isinstance(source, str) else list(source)
        if not names:
            raise ValueError("there is no source: pass HOST:PORT/NAME, or a list of them")
        if into is not None and (dtype is not None or device is not None):
            raise TypeError("into has types and a device of its own: leave out dtype and device")
        until = time.monotonic() + timeout
        self._links: dict[str, Link] = {}
        self._copied: torch.cuda.Event | None = None
        try:
            self._sources = [self._open(name, key, nic, until) for name in names]
            if into is None:
                wanted = self._new(dtype, torch.device(device or "cpu"))
            else:
                wanted = _locals(into, parts)
            self._bind(wanted, mapping)
        except BaseException:
            self.close()
            raise
        self.tensors = {name: it.tensor for name, it in wanted.items()}

    def _open(self, source: str, key: Any, nic: str | None, until: float) -> _Source:
        owner, slash, name = source.partition("/")
        if not slash or not name:
            raise ValueError(f"{source!r} names no object: pass HOST:PORT/NAME")
        link = self._links.get(owner)
        if link is None:
            link = self._links[owner] = Link(owner, key=key, nic=nic, timeout=_left(until))
        # An owner that has published nothing yet has no header either.
        remote = link.open(name, timeout=_left(until))
        remote.wait_newer(timeout=_left(until))
        return _Source(link, remote, _left(until))

    def _new(self, dtype: torch.dtype | None, device: torch.device) -> dict[str, _Local]:
        """Returns new tensors for everything published, each whole."""
        wanted: dict[str, _Local] = {}
        for source in self._sources:
            for entry in source.index.tensors:
                name = entry["name"]
                if name == _STEP or name in wanted:
                    continue
                whole, _ = source.boxes[name]
                published = _TYPES.get(entry["dtype"])
                if published is None:
                    raise ValueError(f"{name} has elements of {entry['dtype']}, which PyTorch does not have")
                tensor = torch.empty(whole, dtype=dtype or published, device=device)
                wanted[name] = _Local(tensor, whole, Box.whole(whole))
        return wanted

    def _bind(self, wanted: dict[str, _Local], mapping: Mapping[str, str] | Callable[[str], str] | None) -> None:
        """Determines which published part goes to which part of which tensor."""
        self._device = next(iter(wanted.values())).tensor.device
        _refuse_shared(wanted)
        published = {name for source in self._sources for name in source.boxes}
        plan: list[tuple[torch.Tensor, int, str, Box, Box]] = []
        for name, it in wanted.items():
            if _overlaps_itself(it.tensor):
                raise ValueError(f"{name} has elements that share memory: pass one that has its own")
            if callable(mapping):
                remote = mapping(name)
            else:
                remote = (mapping or {}).get(name, name)
            if remote not in published:
                as_what = "" if remote == name else f" (as {remote})"
                raise ValueError(f"{name}{as_what} is published by no owner: {_some(published - {_STEP})} are")
            having = [(n, *source.boxes[remote]) for n, source in enumerate(self._sources) if remote in source.boxes]
            for _, whole, _ in having:
                if whole != it.whole:
                    raise ValueError(
                        f"{name} has the shape {list(it.whole)}, and is published with {list(whole)}"
                    )
            try:
                pieces = cover(it.box, [box for _, _, box in having])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            for number, piece in pieces:
                source, _, box = having[number]
                to = it.tensor[piece.slices(it.box)] if it.tensor.dim() else it.tensor
                inside = piece.inside(box)
                read = self._sources[source].best(remote, inside, self._device)
                plan.append((to, source, remote, inside, read))
        # Where nothing has elements, the first source tells the step.
        self._used = sorted({source for _, source, *_ in plan} or {0})
        for number in self._used:
            parts = {(remote, read) for _, source, remote, _, read in plan if source == number}
            self._sources[number].allocate(parts, self._device)
        self._to, self._from = [], []
        for to, number, remote, piece, read in plan:
            view = self._sources[number].views[remote, read]
            self._to.append(to)
            self._from.append(view[piece.slices(read)] if view.dim() else view)

    @property
    def nbytes(self) -> int:
        """Number of bytes that a pull transfers."""
        return sum(self._sources[number].extents.nbytes for number in self._used)

    def pull(self, *, timeout: float = 30.0) -> int | None:
        """Reads the newest weights, and returns their step; None if a file is published, which has no step.

        Of several owners it waits until they have published the same step.
        """
        until = time.monotonic() + timeout
        # The copies of the last pull read the memory that is written now.
        if self._copied is not None:
            self._copied.synchronize()
        used = [self._sources[number] for number in self._used]
        behind = used
        while True:
            for source in behind:
                source.get(_left(until))
            steps = {source.step() for source in used}
            if len(steps) == 1:
                break
            if None in steps:
                raise ValueError("one source is a file without a step, and another has steps: pull each alone")
            newest = max(step for step in steps if step is not None)
            behind = [source for source in used if source.step() != newest]
            for source in behind:
                try:
                    source.remote.wait_newer(source.epoch, timeout=_left(until))
                except NothingNewer as error:
                    raise Error(
                        f"the owner of {source.remote.name} published step {source.step()}, and another one {newest}: "
                        "see why it does not go on"
                    ) from error
        _copy(self._to, self._from)
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))
        return steps.pop()

    def follow(self, *, timeout: float = 30.0) -> Iterator[int | None]:
        """Pulls whenever there is something newer, and yields its step. Raises gdr.NothingNewer once
        nothing was published for `timeout` seconds."""
        first = self._sources[self._used[0]]
        while True:
            if first.epoch is not None:
                first.remote.wait_newer(first.epoch, timeout=timeout)
            yield self.pull(timeout=timeout)

    def close(self) -> None:
        """Ends its links and releases its memory. Further calls do nothing."""
        if self._copied is not None:
            self._copied.synchronize()
        for link in self._links.values():
            link.close()
        self._links.clear()


def pull(source: str | Sequence[str], into: _State | None = None, *, timeout: float = 30.0, **options: Any) -> Any:
    """Reads the newest weights once. Returns the step, or with `into=None` a dict of new tensors.

    Takes the same arguments as Reader. To pull repeatedly, keep a Reader.
    """
    with Reader(source, into, timeout=timeout, **options) as reader:
        step = reader.pull(timeout=timeout)
        return step if into is not None else reader.tensors


def follow(source: str | Sequence[str], into: _State, *, timeout: float = 30.0, **options: Any) -> Iterator[int | None]:
    """Pulls whenever there is something newer, and yields its step. Takes the same arguments as Reader."""
    with Reader(source, into, timeout=timeout, **options) as reader:
        yield from reader.follow(timeout=timeout)


def _left(until: float) -> float:
    """Returns the seconds until a deadline."""
    return max(0.0, until - time.monotonic())


def _refuse_shared(wanted: dict[str, _Local]) -> None:
    """Refuses a tensor that has a part of another one's memory: the later copy of the two would be left there.

    Tensors that have all of it in common are tied, and those with gaps may lie in each other's.
    """
    extents = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, (tensor, _, _) in wanted.items()
        if tensor.is_contiguous() and tensor.numel()
    )
    for (start, end, name), (later, later_end, other) in zip(extents, extents[1:]):
        if later < end and (start, end) != (later, later_end):
            raise ValueError(f"{name} and {other} share a part of their memory: pass tensors that have their own")


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements of a tensor may share memory."""
    dimensions = sorted(
        (stride, length) for stride, length in zip(tensor.stride(), tensor.shape) if length > 1
    )
    extent = 1
    for stride, length in dimensions:
        if stride < extent:
            return True
        extent = stride * (length - 1) + extent
    return False


def _some(names: Iterable[str]) -> str:
    """Joins a few of many names."""
    names = sorted(names)
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
