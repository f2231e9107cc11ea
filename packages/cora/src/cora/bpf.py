"""The kernel's side: libbpf by ctypes. Objects, programs, maps, links, and BPF_PROG_TEST_RUN.

A program is attached by a BPF link whose descriptor this process holds, and nothing is pinned. When the process ends,
whatever ends it, the kernel detaches the program and frees the maps.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cora.errors import DeviceError, Unsupported

XDP_FLAGS_DRV_MODE = 1 << 2
BPF_XDP = 37
_PER_CPU = {5, 6, 10}  # types of maps that hold a value for each CPU
Bytes = bytes | bytearray


def _record(name: str, fields: str) -> type[ctypes.Structure]:
    """Return a structure as libbpf declares it: p pointer, s size_t, I u32, i int, b bool, each with its name."""
    kinds = {"p": ctypes.c_void_p, "s": ctypes.c_size_t, "I": ctypes.c_uint32, "i": ctypes.c_int, "b": ctypes.c_bool}
    parts = [part.split(":") for part in fields.split()]
    return type(name, (ctypes.Structure,), {"_fields_": tuple((field, kinds[kind]) for kind, field in parts)})


_TestRun: Any = _record(
    "bpf_test_run_opts",
    "s:sz p:data_in p:data_out I:data_size_in I:data_size_out p:ctx_in p:ctx_out I:ctx_size_in I:ctx_size_out "
    "I:retval i:repeat I:duration I:flags I:cpu I:batch_size",
)
_LinkOptions: Any = _record("bpf_link_create_opts", "s:sz I:flags I:iter_info p:pad0 p:pad1 p:pad2 p:pad3")
#: As in libbpf 1.0 and newer.
_OpenOptions: Any = _record(
    "bpf_object_open_opts",
    "s:sz p:object_name b:relaxed_maps p:pin_root_path I:attach_prog_fd p:kconfig p:btf_custom_path p:kernel_log_buf "
    "s:kernel_log_size I:kernel_log_level",
)


@cache
def library() -> Any:
    """Return libbpf; raise Unsupported where it is missing."""
    try:
        lib = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise Unsupported("libbpf.so.1 is missing; install libbpf (Debian: libbpf-dev)") from None
    pointer = ctypes.c_void_p
    for name in ("bpf_object__open_mem", "bpf_object__next_program", "bpf_object__next_map"):
        getattr(lib, name).restype = pointer
    for name in ("bpf_program__name", "bpf_map__name"):
        getattr(lib, name).restype = ctypes.c_char_p
    lib.bpf_object__open_mem.argtypes = (ctypes.c_char_p, ctypes.c_size_t, pointer)
    lib.bpf_map_lookup_elem.argtypes = (ctypes.c_int, pointer, pointer)
    lib.bpf_map_update_elem.argtypes = (ctypes.c_int, pointer, pointer, ctypes.c_uint64)
    lib.bpf_map_delete_elem.argtypes = (ctypes.c_int, pointer)
    lib.libbpf_set_print(None)
    return lib


def why_not() -> str:
    """Return why programs cannot be loaded here, or "" if they can."""
    if os.geteuid() != 0:
        return "loading a BPF program needs root"
    try:
        library()
    except Unsupported as error:
        return str(error)
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "this kernel has no BPF with BTF (/sys/kernel/btf/vmlinux is missing)"
    return ""


class LoadFailed(Exception):
    """The kernel refused an object; `log` holds the verifier's words."""

    def __init__(self, log: str, errno: int) -> None:
        super().__init__(log)
        self.log, self.errno = log, errno


class Map:
    """A map of a loaded object, with keys and values as bytes."""

    def __init__(self, handle: Any) -> None:
        lib = library()
        sizes = [getattr(lib, f"bpf_map__{what}")(handle) for what in ("fd", "key_size", "value_size", "max_entries")]
        self.fd, self.key_bytes, self.value_bytes, self.entries = sizes
        name = lib.bpf_map__name(handle).decode()
        self.name = "globals" if name.endswith(".bss") else name
        self.cpus = lib.libbpf_num_possible_cpus() if lib.bpf_map__type(handle) in _PER_CPU else 1
        self._value = ctypes.create_string_buffer(-(-self.value_bytes // 8) * 8 * self.cpus)

    def get(self, key: Bytes) -> bytes | None:
        """Return the value of a key, of all CPUs one after another for a per-CPU map, or None."""
        if library().bpf_map_lookup_elem(self.fd, bytes(key), self._value):
            return None
        return self._value.raw if self.cpus > 1 else self._value.raw[: self.value_bytes]

    def set(self, key: Bytes, value: Bytes) -> bool:
        """Store a value; return False if the kernel refused, as a full map does."""
        return int(library().bpf_map_update_elem(self.fd, bytes(key), bytes(value), 0)) == 0

    def delete(self, key: Bytes) -> bool:
        """Remove a key; return False if there was none."""
        return int(library().bpf_map_delete_elem(self.fd, bytes(key))) == 0

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return all keys and values; those that come or go meanwhile may be missed or come twice."""
        sizes = (self.key_bytes, self.value_bytes)
        parts = [ctypes.create_string_buffer(self.entries * size) for size in sizes]
        got, begin, at = 0, None, ctypes.create_string_buffer(max(8, self.key_bytes))
        while got < self.entries:
            count = ctypes.c_uint32(self.entries - got)
            to = [ctypes.byref(part, got * size) for part, size in zip(parts, sizes, strict=True)]
            rc = library().bpf_map_lookup_batch(self.fd, begin, at, *to, ctypes.byref(count), None)
            # A map that changes meanwhile may end the reading early: its next bucket exceeds the room left, or keys go.
            if rc not in {0, -errno.ENOENT, -errno.ENOSPC, -errno.EINTR}:
                raise Unsupported(f"the map {self.name} cannot be read: {os.strerror(-rc)}")
            got, begin = got + count.value, at
            if rc:
                break
        keys, values = (struct.iter_unpack(f"{size}s", part.raw) for part, size in zip(parts, sizes, strict=True))
        return [(key, value) for (key,), (value,) in itertools.islice(zip(keys, values, strict=True), got)]

    def memory(self) -> mmap.mmap:
        """Return the memory of an array that can be mapped, as global variables can."""
        size = -(-self.value_bytes // 8) * 8 * self.entries
        return mmap.mmap(self.fd, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)


class Object:
    """A compiled object: opened, sized and loaded, then asked for maps and programs."""

    def __init__(self, code: bytes, resize: dict[str, int], only: Callable[[str], bool] = bool) -> None:
        """Load an object.

        Args:
            code: The ELF file.
            resize: Number of entries by map name, instead of those in the file.
            only: Chooses programs by name; others are not loaded.

        Raises:
            LoadFailed: The kernel refused it.
        """
        lib, log = library(), ctypes.create_string_buffer(1 << 20)
        options = _OpenOptions(sz=ctypes.sizeof(_OpenOptions), kernel_log_size=len(log), kernel_log_level=1)
        options.kernel_log_buf = ctypes.addressof(log)
        self._object: Any = ctypes.c_void_p(lib.bpf_object__open_mem(code, len(code), ctypes.byref(options)))
        if not self._object:
            raise LoadFailed("libbpf cannot read the object", ctypes.get_errno())
        for name, program in self._each("program"):
            lib.bpf_program__set_autoload(program, ctypes.c_bool(only(name)))
        for name, one in self._each("map"):
            if name in resize:
                lib.bpf_map__set_max_entries(one, ctypes.c_uint32(resize[name]))
        if rc := lib.bpf_object__load(self._object):
            self.close()
            raise LoadFailed(log.value.decode(errors="replace"), -rc)
        descriptors = {name: lib.bpf_program__fd(one) for name, one in self._each("program")}
        self.programs = {name: fd for name, fd in descriptors.items() if fd >= 0}
        self.maps = {one.name: one for one in (Map(handle) for _, handle in self._each("map"))}

    def _each(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Yield name and handle of each program or map."""
        following, name = (getattr(library(), text.format(kind)) for text in ("bpf_object__next_{}", "bpf_{}__name"))
        at = ctypes.c_void_p(following(self._object, None))
        while at:
            yield name(at).decode(), at
            at = ctypes.c_void_p(following(self._object, at))

    def close(self) -> None:
        """Free programs and maps."""
        if self._object:
            library().bpf_object__close(self._object)
            self._object = None


def test_run(program: int, frame: Bytes, repeat: int = 1) -> tuple[int, bytes, int]:
    """Run an XDP program on a frame; return its result, the frame afterwards, and ns per run (mean)."""
    out = ctypes.create_string_buffer(4096)
    data = (ctypes.c_char * len(frame)).from_buffer_copy(frame)
    options = _TestRun(sz=ctypes.sizeof(_TestRun), repeat=repeat, data_size_in=len(frame), data_size_out=len(out))
    options.data_in, options.data_out = ctypes.addressof(data), ctypes.addressof(out)
    rc = library().bpf_prog_test_run_opts(program, ctypes.byref(options))
    if rc:
        raise Unsupported(f"BPF_PROG_TEST_RUN failed: {os.strerror(-rc)}")
    return options.retval, out.raw[: options.data_size_out], options.duration


def attach(program: int, ifindex: int, device: str) -> int:
    """Attach an XDP program in native mode; return the link's descriptor, whose closing detaches it."""
    options = _LinkOptions(sz=24, flags=XDP_FLAGS_DRV_MODE)
    fd: int = library().bpf_link_create(program, ifindex, BPF_XDP, ctypes.byref(options))
    if fd >= 0:
        return fd
    if -fd == 16:
        raise DeviceError(f"{device} already carries an XDP program; remove it with `ip link set {device} xdp off`")
    raise DeviceError(
        f"{device} cannot carry an XDP program in native mode ({os.strerror(-fd)}); its driver must support "
        "native XDP, and a veth's MTU must be below 3,500"
    )
