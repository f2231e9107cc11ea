"""Read the activity of a Python stack from frames of libraries that everybody uses; never from the user's own names.

The outermost frame with a purpose counts: `torch.save` to an object store is a save although its innermost frame reads
a socket. Reads come last, for saving, logging and compiling read too. Files are as stacks show them, without install
prefixes ("torch/serialization.py"). A way to carry something is no purpose: what is posted to a service or copied to a
file may be a metric, a state or neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from eroica.diagnosis.frames import is_own_frame, split_frame

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
_STANDARD = _Library(("logging/",))


def activity_of(stack: Sequence[str]) -> Activity:
    """Return the activity that a stack shows; "" where no frame of a known library tells."""
    return _activity(tuple(stack))


@lru_cache(maxsize=8192)
def _activity(stack: tuple[str, ...]) -> Activity:
    for place, frame in enumerate(stack):
        purpose = _of_frame(frame, "purpose")
        if purpose and not (purpose == "log" and _is_around_training(stack, place)):
            return purpose
    for frame in reversed(stack):
        read = _of_frame(frame, "read")
        if read:
            return read
    if any(_of_frame(frame, "sync") for frame in stack):
        return "sync"
    return "thread" if stack and _of_frame(stack[-1], "thread") else ""


def _is_around_training(stack: tuple[str, ...], place: int) -> bool:
    """True if a frame of a logger or tracker runs the program, or the training loop, rather than logs for it.

    Decorators that catch errors, agents of a sweep and patched trainers do: the own code begins below, or modules,
    optimizers and trainers run there. What the standard library calls of the user's are handlers.
    """
    above, below = stack[:place], stack[place + 1 :]
    if split_frame(stack[place]).name.endswith("catch_wrapper"):
        return True
    is_in_own = any(is_own_frame(frame) and not _is_file(frame) for frame in above)
    begins_below = not is_in_own and any(map(is_own_frame, below)) and not _shows(_STANDARD, stack[place])
    return begins_below or any(_shows(_TRAINING, frame) for frame in below)


def _is_file(frame: str) -> bool:
    """True if a frame is a file run as a whole, which is where programs begin."""
    return split_frame(frame).name == "<module>"


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


def _shows(library: _Library, entry: str) -> bool:
    frame = split_frame(entry)
    return _holds(library, frame.file) and library.names.search(frame.name) is not None


def _holds(library: _Library, file: str) -> bool:
    return any(file.startswith(name) if name.endswith("/") else file == name for name in library.files)
