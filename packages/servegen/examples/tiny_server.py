"""A real serving engine that needs no download: `transformers serve` with a tiny model of random weights."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

#: Seconds that a server may take to start.
START_S = 300


def make_model(folder: Path, hidden: int = 128, layers: int = 4) -> Path:
    """Write a model of random weights with a tokeniser of one token per ASCII character, and return its folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    characters = [chr(c) for c in range(32, 127)]
    vocabulary = {"<unk>": 0, "<eos>": 1, "\n": 2} | {c: i + 3 for i, c in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}\n"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # Special tokens have no text. Without a last norm's direction of their own they are hardly ever the likeliest.
        model.lm_head.weight[:3] = 0
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def serve(model: Path, instances: int = 1) -> Iterator[list[str]]:
    """Run instances of `transformers serve` with continuous batching; yield their URLs."""
    command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        str(model),
        "--device",
        "cpu",
        "--continuous-batching",
    ]
    command += [
        "--cb-num-blocks",
        "512",
        "--cb-block-size",
        "32",
        "--cb-max-batch-tokens",
        "512",
        "--host",
        "127.0.0.1",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    logs = [(model / f"server-{i}.log").open("wb") for i in range(instances)]
    ports = [free_port() for _ in range(instances)]
    running = [
        subprocess.Popen([*command, "--port", str(port)], env=environment, stdout=log, stderr=subprocess.STDOUT)
        for port, log in zip(ports, logs, strict=True)
    ]
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url, process, log in zip(urls, running, logs, strict=True):
            _wait(url, process, Path(log.name), str(model))
        yield urls
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in logs:
            log.close()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, model: str) -> None:
    """Wait until a server answers a request."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}).encode()
    deadline = time.monotonic() + START_S
    while True:
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the server did not start ({error}); its log ends:\n{log.read_text()[-2000:]}"
                ) from error
            time.sleep(0.5)
