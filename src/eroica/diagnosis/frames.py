"""Find the frame of many stacks that holds the excess, and read what a stack does from frames of known libraries.

The frame that is named is the most specific one, the user's own before a library's. For an activity the outermost frame
with a purpose counts, and never the user's own names: `torch.save` to an object store is a save although its innermost
frame reads a socket. Reads come last, for saving, logging and compiling read too. Files are as stacks show them: no
install prefixes ("torch/serialization.py"). A way to carry something is no purpose: what is posted to a service or
copied to a file may be a metric, a state or neither.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eroica.model.pattern import FunctionKey
from eroica.model.verdict import NO_FUNCTION

Floats = NDArray[np.float64]

#: Shares that rules share: from `MOST` of it on a part stands for the whole, and workers stand for the job. What must
#: account for nearly all holds a `LARGE_PART`; what is as good as all of it, or as long, has `NEARLY_ALL`.
NEARLY_ALL, LARGE_PART, MOST, HALF = 0.85, 0.75, 0.6, 0.5
#: Packages whose frames are nobody's own code. Others that are installed count as the user's: naming a frame too
#: high or too deep in them still names the right place.
_PACKAGES = frozenset(
    {
        "torch", "torchinductor", "torchvision", "torchaudio", "torchdata", "numpy", "scipy", "pandas", "pyarrow",
        "PIL", "cv2", "transformers", "tokenizers", "accelerate", "deepspeed", "megatron", "apex", "triton",
        "pytorch_lightning", "lightning", "lightning_fabric", "fsspec", "requests", "urllib3", "botocore", "boto3",
        "s3fs", "aiohttp", "h5py", "tqdm", "dill", "multiprocess", "einops", "safetensors", "webdataset",
        "wandb", "mlflow", "tensorboard", "tensorboardX", "comet_ml", "neptune", "clearml", "swanlab", "trackio",
        "dvclive", "prometheus_client", "loguru", "structlog", "absl", "rich", "joblib", "cloudpickle", "zarr",
        "diffusers", "peft", "fairscale", "colossalai", "torchtnt", "httpx", "httpcore", "s3transfer", "gcsfs",
        "adlfs", "smart_open", "oss2", "minio", "huggingface_hub", "redis", "pymongo", "psycopg", "psycopg2",
        "pymysql", "kafka", "grpc", "paramiko", "lmdb", "netCDF4", "tiledb", "tfrecord", "nibabel", "imageio",
        "skimage", "tifffile", "pydicom", "rasterio", "numba", "sklearn", "torchmetrics", "sentencepiece",
        "google", "azure", "matplotlib", "ignite", "timm", "xformers", "flash_attn", "ray", "trl", "torch_geometric",
        "torchtitan", "torchft", "unsloth", "vllm", "sglang", "axolotl", "openrlhf", "verl", "bitsandbytes",
        "omegaconf",
    }
)  # fmt: skip
#: Packages whose names people give their own folders too. Frames of installed packages keep their whole path and others
#: two parts, so with two parts it is the user's.
_COMMON_NAMES = frozenset(
    {"absl", "azure", "google", "grpc", "ignite", "kafka", "minio", "neptune", "ray", "redis", "rich"}
)
#: Packages of the standard library that are folders; its modules stand without one ("threading.py").
_STANDARD = frozenset(
    {
        "asyncio", "collections", "concurrent", "ctypes", "curses", "dbm", "email", "encodings", "html", "http",
        "importlib", "json", "lib-dynload", "logging", "multiprocessing", "pathlib", "re", "sqlite3", "tomllib",
        "unittest", "urllib", "wsgiref", "xml", "xmlrpc", "zipfile", "zoneinfo",
    }
)  # fmt: skip
_FRAME = re.compile(r"^(?P<name>\S.*?) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A stack entry taken apart: "name (file:line)"."""

    name: str
    file: str
    line: str

    @property
    def place(self) -> str:
        """For sentences: "dataset.py:41"; "" where the file is unknown."""
        base = self.file.rsplit("/", 1)[-1]
        return f"{base}:{self.line}" if base and self.line else base

    @property
    def last(self) -> str:
        """Name without its class."""
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """For sentences: "__getitem__ (dataset.py:41)"."""
        return _label(self.name, self.place)


def _label(name: str, place: str) -> str:
    return f"{name} ({place})" if place else name


class Focus(msgspec.Struct, frozen=True, kw_only=True):
    """The frame a finding names.

    Attributes:
        name: Function name.
        place: "file.py:line", or "".
        stack: Whole stack of the heaviest row under it, outermost first.
        functions: Rows that lie under it (indices into the fleet's keys).
        share: Share of the excess they hold, 0-1.
        is_own: The user's own frame, not a library's.
        is_specific: Most of its time is excess.
    """

    name: str
    place: str = ""
    stack: tuple[str, ...] = ()
    functions: tuple[int, ...]
    share: float = 1.0
    is_own: bool = False
    is_specific: bool = True

    @property
    def label(self) -> str:
        """For sentences: "__getitem__ (dataset.py:41)"."""
        return _label(self.name, self.place)

    @property
    def entry(self) -> str:
        """Frame as its stack has it, "" where it has none. A name alone is not enough: modules nest `forward`."""
        frames = ((one, split_frame(one)) for one in self.stack)
        return next((one for one, frame in frames if (frame.name, frame.place) == (self.name, self.place)), "")


#: For findings that name none.
NOTHING = Focus(name=NO_FUNCTION, functions=(), share=0.0, is_specific=False)


@lru_cache(maxsize=65536)
def split_frame(entry: str) -> Frame:
    """Take a stack entry apart; an entry of another form is all name."""
    match = _FRAME.match(entry)
    if match is None:
        return Frame(name=entry, file="", line="")
    return Frame(name=match["name"], file=match["file"], line=match["line"] or "")


def is_own_frame(entry: str) -> bool:
    """True if a frame is the user's code: no standard library, no well-known package, not Eroica's hooks."""
    file = split_frame(entry).file
    if not file or file.startswith("<frozen") or "site-packages" in file or "dist-packages" in file:
        return False
    parts = file.lstrip("/").split("/")
    if parts[:2] == ["eroica", "worker"]:
        return False
    if len(parts) == 1:
        return parts[0].removesuffix(".py") not in sys.stdlib_module_names
    if len(parts) == 2 and parts[0] in _COMMON_NAMES:
        return parts[1] not in ("__init__.py", "__main__.py")
    return parts[0] not in _PACKAGES | _STANDARD


def find_focus(keys: Sequence[FunctionKey], functions: Sequence[int], excess_R: Floats, time_R: Floats) -> Focus | None:
    """Find the frame to name for the excess of some rows.

    Among frames that hold at least 60 % of the excess and are mostly excess themselves, the one with the least time
    (the most specific; of equals the deepest); the user's own frames come before a library's. Without such a frame the
    user's frame with the least time that holds most of it, else the heaviest row.

    Args:
        keys: All functions.
        functions: Rows of the group (indices into `keys`).
        excess_R: Excess of each row. float64 [R].
        time_R: Time of each row on the same workers. float64 [R].

    Returns:
        The focus; None if there is no excess at all.
    """
    total = float(excess_R.sum())
    if total <= 0:
        return None
    excess, time = excess_R.tolist(), time_R.tolist()
    under = defaultdict[tuple[str, bool], list[int]](list)  # rows under a frame, and of it as a leaf; heaviest first
    for at in np.argsort(-excess_R, kind="stable").tolist():
        stack = keys[functions[at]].stack
        for entry in {(frame, False) for frame in stack} | {(frame, True) for frame in stack[-1:]}:
            under[entry].append(at)
    held = {entry: sum(excess[at] for at in rows) for entry, rows in under.items()}
    most = {entry: sum(time[at] for at in under[entry]) for entry, one in held.items() if one >= MOST * total}
    specific = {entry: whole for entry, whole in most.items() if held[entry] >= HALF * whole}

    def rank(entry: tuple[str, bool]) -> tuple[float, int, tuple[str, bool]]:
        """Sort the frame with the least time first, of equals the deepest."""
        return round(most[entry], 3), -keys[functions[under[entry][0]]].stack.index(entry[0]), entry

    own = [entry for entry in most if is_own_frame(entry[0])]
    for choice in ([entry for entry in own if entry in specific], specific, own):
        if choice:
            entry = min(choice, key=rank)
            frame, rows = split_frame(entry[0]), tuple(functions[at] for at in under[entry])
            return Focus(
                name=frame.name,
                place=frame.place,
                stack=keys[rows[0]].stack,
                functions=rows,
                share=min(held[entry] / total, 1.0),
                is_own=entry in own,
                is_specific=entry in specific,
            )
    row = int(np.argmax(excess_R))
    found = focus_on_row(keys, functions[row], float(excess_R[row] / total))
    return msgspec.structs.replace(found, is_specific=bool(excess_R[row] >= HALF * time_R[row]))


def focus_on_row(keys: Sequence[FunctionKey], row: int, share: float) -> Focus:
    """Name one row by its key and the innermost frame of its stack; `share` is what it holds of the excess."""
    key = keys[row]
    return Focus(
        name=key.name,
        place=split_frame(key.stack[-1]).place if key.stack else "",
        stack=key.stack,
        functions=(row,),
        share=min(share, 1.0),
        is_own=bool(key.stack) and is_own_frame(key.stack[-1]),
    )


# --- the activity that a stack shows, by frames of libraries that everybody uses ---


Activity = Literal[
    "save", "log", "compile", "program", "service", "network", "file", "decode", "thread", "sync", ""
]  # fmt: skip

_ANY = re.compile("")


class _Library(NamedTuple):
    """Frames that show an activity: files that begin (a folder) or end like this, and names of functions in them."""

    files: tuple[str, ...]
    names: re.Pattern[str] = _ANY


def _named(*names: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:.*\.)?(?:{'|'.join(names)})$")


#: Functions of a library that write state for later.
_SAVES = _named(r"_*save\w*", r"\w+_save\w*", r"async_save", r"write\w*", r"_write\w*", r"dump\w*", r"to_file")
_PURPOSES: dict[Activity, tuple[_Library, ...]] = {
    "compile": (
        _Library(("torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py")),
        _Library(("torch/_dynamo/output_graph.py", "torch/_dynamo/guards.py")),
        _Library(("torch/_inductor/compile_fx.py", "torch/_inductor/codecache.py", "torch/_inductor/graph.py")),
        _Library(("torch/_inductor/scheduler.py", "torch/_inductor/async_compile.py", "torch/_inductor/codegen/")),
        _Library(("torch/utils/cpp_extension.py", "triton/compiler/", "triton/runtime/autotuner.py", "numba/core/")),
    ),
    "log": (
        _Library(("logging/__init__.py", "logging/handlers.py", "loguru/", "structlog/", "absl/logging/", "rich/")),
        _Library(
            ("tqdm/",),
            _named("update", "refresh", "display", "print_status", "fp_write", "write", "set_postfix.*"),
        ),
        _Library(("torch/utils/tensorboard/", "tensorboard/", "tensorboardX/", "wandb/", "mlflow/", "comet_ml/")),
        _Library(("neptune/", "clearml/", "swanlab/", "prometheus_client/", "trackio/", "dvclive/")),
    ),
    "save": (
        _Library(("torch/serialization.py",), _named("save", "_save", "_legacy_save")),
        _Library(("torch/distributed/checkpoint/", "torch/distributed/_shard/checkpoint/"), _SAVES),
        _Library(("torch/distributed/checkpoint/state_dict.py",), _named(r"_?get_\w*state_dict")),
        _Library(("safetensors/", "numpy/lib/", "joblib/", "h5py/", "dill/", "cloudpickle/", "zarr/"), _SAVES),
        _Library(("pickle.py", "json/__init__.py", "json/encoder.py"), _named("dump", "save")),
        _Library(("transformers/", "lightning/", "pytorch_lightning/", "accelerate/", "diffusers/", "peft/"), _SAVES),
        _Library(("deepspeed/", "megatron/", "fairscale/", "colossalai/", "torchtnt/"), _SAVES),
        _Library(("pandas/",), _named(r"to_(?:csv|parquet|pickle|json|hdf)", "save")),
    ),
    "program": (_Library(("subprocess.py",)),),
    "service": (
        _Library(("requests/api.py", "requests/sessions.py", "httpx/_client.py"), _named("post", "put", "patch")),
        _Library(("aiohttp/client.py",), _named("post", "put", "patch")),
    ),
}  # fmt: skip
#: What is read where no frame has a purpose of its own; the first that matches any frame counts.
_READS: dict[Activity, tuple[_Library, ...]] = {
    "network": (
        _Library(("socket.py", "ssl.py"), _named("read.*", "recv.*", "connect.*", "create_connection", "do_handshake")),
        _Library(("http/client.py", "urllib/request.py", "urllib3/", "requests/", "httpx/", "httpcore/", "aiohttp/")),
        _Library(("botocore/", "boto3/", "s3transfer/", "s3fs/", "gcsfs/", "adlfs/", "fsspec/", "smart_open/")),
        _Library(("google/cloud/storage/", "azure/storage/", "oss2/", "minio/", "huggingface_hub/", "ftplib.py")),
        _Library(("redis/", "pymongo/", "psycopg/", "psycopg2/", "pymysql/", "kafka/", "grpc/", "paramiko/")),
    ),
    "file": (
        _Library(
            ("torch/serialization.py",), _named("load", "_load", "_legacy_load", "load_tensor", "persistent_load")
        ),
        _Library(("numpy/lib/",), _named("load.*", "read.*", "fromfile", "_read.*", "genfromtxt", "open_memmap")),
        _Library(
            ("numpy/core/memmap.py", "numpy/_core/memmap.py", "pathlib.py", "pathlib/", "mmap.py", "fileinput.py")
        ),
        _Library(
            ("zipfile.py", "zipfile/", "tarfile.py", "h5py/", "lmdb/", "netCDF4/", "zarr/", "tiledb/", "shutil.py")
        ),
        _Library(("safetensors/", "pyarrow/", "pandas/io/", "webdataset/", "torchdata/", "tfrecord/")),
        _Library(("torchvision/io/", "torchvision/datasets/folder.py", "torchaudio/", "soundfile.py", "nibabel/")),
        _Library(("PIL/Image.py", "PIL/ImageFile.py", "imageio/", "skimage/io/", "tifffile/", "pydicom/", "rasterio/")),
        _Library(
            ("<frozen codecs>", "codecs.py", "gzip.py", "bz2.py", "lzma.py", "_compression.py", "csv.py", "glob.py")
        ),
        _Library(("pickle.py", "json/__init__.py"), _named("load", "_Unpickler.load")),
    ),
}
#: The training thread waits for another one.
_THREADS = (
    _Library(("queue.py", "threading.py", "concurrent/futures/", "multiprocessing/pool.py")),
    _Library(("multiprocessing/queues.py",)),
    _Library(("multiprocessing/connection.py", "multiprocessing/synchronize.py", "selectors.py", "asyncio/")),
)  # fmt: skip
#: Calls that wait until the device has done all that it was given; most of them are built-in, and then not seen.
_SYNCS = (
    _Library(
        ("torch/cuda/", "torch/xpu/", "torch/mps/", "torch/accelerator/"), _named("synchronize", "Event.synchronize")
    ),
    _Library(
        ("torch/_tensor.py",), _named("item", "tolist", "__bool__", "__float__", "__int__", "__format__", "__repr__")
    ),
    _Library(("torch/_tensor_str.py",)),
)
#: All of them, by what is asked of a frame.
_CLASSES: dict[str, dict[Activity, tuple[_Library, ...]]] = {
    "purpose": _PURPOSES,
    "read": _READS,
    "sync": {"sync": _SYNCS},
    "thread": {"thread": _THREADS},
}
#: Frames of training, which no logger calls.
_TRAINING = _Library(
    (
        "torch/nn/modules/module.py", "torch/optim/optimizer.py", "torch/utils/data/dataloader.py",
        "torch/autograd/__init__.py", "lightning/", "pytorch_lightning/", "transformers/trainer.py",
    )
)  # fmt: skip


def activity_of(stack: Sequence[str]) -> Activity:
    """Return the activity that a stack shows; "" where no frame of a known library tells."""
    return _activity(tuple(stack)) if stack else ""


@lru_cache(maxsize=8192)
def _activity(stack: tuple[str, ...]) -> Activity:
    for place, frame in enumerate(stack):
        purpose = _of_frame(frame, "purpose")
        if purpose and not (purpose == "log" and _is_around_training(stack, place)):
            return purpose
    asked = [*((one, "read") for one in reversed(stack)), *((one, "sync") for one in stack), (stack[-1], "thread")]
    return next((found for one in asked if (found := _of_frame(*one))), "")


def _is_around_training(stack: tuple[str, ...], place: int) -> bool:
    """True if a frame of a logger or tracker runs the program, or the training loop, rather than logs for it.

    Decorators that catch errors, agents of a sweep and patched trainers do: the own code begins below, or modules,
    optimizers and trainers run there. What the standard library calls of the user's are handlers.
    """
    above, below = stack[:place], stack[place + 1 :]
    if split_frame(stack[place]).name.endswith("catch_wrapper"):
        return True
    # a file run as a whole is where programs begin
    is_in_own = any(is_own_frame(frame) and split_frame(frame).name != "<module>" for frame in above)
    begins_below = (
        not is_in_own and any(map(is_own_frame, below)) and not split_frame(stack[place]).file.startswith("logging/")
    )
    return begins_below or any(_holds(_TRAINING, split_frame(frame).file) for frame in below)


@lru_cache(maxsize=65536)
def _of_frame(entry: str, asked: str) -> Activity:
    """Return the activity of one class that one frame shows; "" without one."""
    if is_own_frame(entry):
        return ""
    frame = split_frame(entry)
    return next((activity for activity, names in _in_file(frame.file, asked) if names.search(frame.name)), "")


@lru_cache(maxsize=16384)
def _in_file(file: str, asked: str) -> tuple[tuple[Activity, re.Pattern[str]], ...]:
    """List the activities of one class that functions of a file show, with patterns of these functions' names."""
    return tuple(
        (activity, library.names)
        for activity, libraries in _CLASSES[asked].items()
        for library in libraries
        if _holds(library, file)
    )


def _holds(library: _Library, file: str) -> bool:
    return any(file.startswith(name) if name.endswith("/") else file == name for name in library.files)
