"""Files of other tools that people take for a trace: what each is, told by its first bytes, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

_TRACE = "name the .json that torch.profiler exported (export_chrome_trace)"
_UTF_16 = "is encoded in UTF-16; convert it to UTF-8 first (`iconv -f UTF-16 -t UTF-8`)"


class _Magic(NamedTuple):
    """A file that begins like this; what it is, and what to do."""

    begin: bytes
    is_what: str


#: Containers and binary formats. Sources: the formats' own specifications.
_MAGICS = (
    _Magic(b"\x28\xb5\x2f\xfd", "is packed with zstd; unpack it first (`zstd -d`)"),
    _Magic(b"PK\x03\x04", "is a zip archive; unpack it first"),
    _Magic(b"BZh", "is packed with bzip2; unpack it first (`bunzip2`)"),
    _Magic(b"\xfd7zXZ", "is packed with xz; unpack it first (`unxz`)"),
    _Magic(b"\xff\xfe", _UTF_16),
    _Magic(b"\xfe\xff", _UTF_16),
    _Magic(b"{\x00", _UTF_16),
    _Magic(b"\x00{", _UTF_16),
    _Magic(b"[\x00", _UTF_16),
    _Magic(b"\x00[", _UTF_16),
    _Magic(b"\x80", "is a Python pickle and no trace; a Flight Recorder dump is recognized by its name (`..._dump_0`)"),
    _Magic(b"version https://git-lfs", "is a Git LFS pointer and not the file itself; fetch it (`git lfs pull`)"),
    _Magic(b"<!DOCTYPE", "is a web page, perhaps a login page saved in place of the file; download it again"),
    _Magic(b"<html", "is a web page, perhaps a login page saved in place of the file; download it again"),
    _Magic(b"<?xml", f"is XML; {_TRACE}"),
    _Magic(b"<svg", f"is a picture (SVG), perhaps a flame graph; {_TRACE}"),
    _Magic(b"\x89PNG", f"is a picture (PNG); {_TRACE}"),
    _Magic(b"\x7fELF", f"is a program; {_TRACE}"),
)
#: Keys of the outermost object -> what the file is. Sources: VizTracer's and speedscope's file formats, torch's
#: `execution_trace_observer.cpp`, `rocprofv3 --output-format json`, V8's `.cpuprofile`, torch's memory snapshots.
_KEYS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"entries", "pg_status"}), "is a Flight Recorder dump and no trace; name the folder of the dumps"),
    (frozenset({"entries", "pg_config"}), "is a Flight Recorder dump and no trace; name the folder of the dumps"),
    (frozenset({"viztracer_metadata"}), f"is a trace of VizTracer, not of PyTorch's profiler; {_TRACE}"),
    (frozenset({"shared", "profiles"}), f"is a speedscope profile; {_TRACE}"),
    (frozenset({"schema", "nodes"}), f"is a PyTorch Execution Trace, which holds no times of kernels; {_TRACE}"),
    (
        frozenset({"rocprofiler-sdk-tool"}),
        f"is rocprofv3's own JSON; {_TRACE}",
    ),
    (frozenset({"nodes", "samples", "timeDeltas"}), f"is a CPU profile of V8 (.cpuprofile); {_TRACE}"),
    (frozenset({"viztracer"}), f"is a trace of VizTracer, not of PyTorch's profiler; {_TRACE}"),
    (frozenset({"segments", "device_traces"}), f"is a snapshot of the device's memory; {_TRACE}"),
    (frozenset({"cells", "nbformat"}), f"is a notebook; {_TRACE}"),
    (frozenset({"schema_version", "verdict", "coverage"}), "is a verdict of Eroica; show it with `eroica report`"),
)
_SPEEDSCOPE = b"speedscope.app/file-format-schema"
_XPLANE = re.compile(rb"/(?:host:CPU|host:metadata|device:(?:TPU|GPU|CUSTOM):\d)")
_XSPACE = "is an XPlane (JAX, TensorFlow, torch_xla); convert it to trace.json.gz first (xprof's trace viewer)"
_SUFFIXES = {
    ".nsys-rep": "is a report of Nsight Systems; export it first (`nsys export --type sqlite`)",
    ".qdrep": "is a report of Nsight Systems; export it first (`nsys export --type sqlite`)",
    ".ncu-rep": f"is a report of Nsight Compute, which measures single kernels; {_TRACE}",
    ".pftrace": f"is a trace in Perfetto's binary format; {_TRACE}",
    ".perfetto-trace": f"is a trace in Perfetto's binary format; {_TRACE}",
    ".prof": f"is a profile of another tool (cProfile, pprof); {_TRACE}",
}


def what_else(head: bytes, name: str = "") -> str:
    """What a file is that is no trace, as a clause behind its name: "is a zip archive; unpack it first".

    Args:
        head: Its first bytes, unpacked if it was packed.
        name: Its name, whose ending counts where the bytes tell nothing.

    Returns:
        The clause, "" where nobody knows.
    """
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if head[:1] == b"\n" and _XPLANE.search(head[:65_536]):
        return _XSPACE
    if head[:2] == b"\x1f\x8b":
        return "is packed with gzip twice; unpack it once (`gunzip`)"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic in _MAGICS:
        if head.startswith(magic.begin) or (magic.begin[:1] == b"<" and text.startswith(magic.begin)):
            return magic.is_what
    if _SPEEDSCOPE in head[:65_536] and text[:1] == b"{":
        return f"is a speedscope profile; {_TRACE}"
    return ""


def what_by_keys(keys: Collection[str]) -> str:
    """The same, by what stands in the outermost object of its JSON."""
    return next((what for wanted, what in _KEYS if wanted <= set(keys)), "")


#: Tools that write Chrome traces of their own, and how their events show it. Categories of VizTracer: its `FEE`.
_WRITERS: tuple[tuple[str, Callable[[str], bool]], ...] = (("VizTracer", lambda category: category == "FEE"),)


def writer_of(categories: Collection[str], keys: Collection[str]) -> str:
    """Name of the tool that wrote a Chrome trace without any event of PyTorch's, "" where nobody knows."""
    if "viztracer_metadata" in keys:
        return "VizTracer"
    return next((name for name, fits in _WRITERS if any(map(fits, categories))), "")
