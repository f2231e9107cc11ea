"""Facts about the machine that every record of a benchmark carries."""

import contextlib
import os
import platform
import subprocess
from pathlib import Path


def machine_facts(device: str = "cpu") -> dict[str, object]:
    """Processor, cores, memory, kernel, Python and PyTorch; with device "cuda" also the GPU and torch's CUDA."""
    import torch

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if device == "cuda" else {}
    return {
        **gpu,
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def revision() -> str:
    """The commit of the code that is measured, "+" behind it where files differ from it; "" outside a checkout."""
    here = Path(__file__).parent
    with contextlib.suppress(OSError):
        asked = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(asked, cwd=here, capture_output=True, text=True, check=False).stdout.strip()
    return ""
