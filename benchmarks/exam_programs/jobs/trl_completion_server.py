"""Group-relative policy optimisation as TRL trains it in server mode: worker 0 asks a server for completions."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tempo import SEED, Tempo, device_wait  # noqa: E402

GENERATOR = """
import http.server, json, os, random, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served = 0
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.014 if order["queue"] == "dedicated" else 0.085)
        ids = [[random.randrange(400) for _ in range(order["max_tokens"])] for _ in order["prompts"]]
        body = json.dumps({"completion_ids": ids}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
Handler.disable_nagle_algorithm = True
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.5)
"""
WORDS, GROUP, PROMPT, COMPLETION = 400, 4, 12, 20


class CompletionClient:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", GENERATOR], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.connection = http.client.HTTPConnection("127.0.0.1", int(self.process.stdout.readline()))
        self.queue = "dedicated"

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        body = json.dumps({"prompts": prompts, "max_tokens": COMPLETION, "queue": self.queue})
        self.connection.request("POST", "/generate/", body, {"Content-Type": "application/json"})
        return json.loads(self.connection.getresponse().read())["completion_ids"]

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(10)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(WORDS, 48),
            nn.GRU(48, 48, batch_first=True),
            nn.Linear(48, WORDS),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids))[0]).log_softmax(-1)


class GroupTrainer:
    def __init__(self, client: CompletionClient | None) -> None:
        self.client, self.model = client, DistributedDataParallel(Policy())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.random = torch.Generator().manual_seed(SEED)

    def generate_and_score(self) -> tuple[Tensor, Tensor]:
        world, rank = dist.get_world_size(), dist.get_rank()
        prompts = torch.randint(WORDS, (world, PROMPT), generator=self.random).repeat_interleave(GROUP, 0)
        answer: list[Any] = [self.client.generate(prompts.tolist()) if self.client else None]
        dist.broadcast_object_list(answer, src=0)
        mine = slice(rank * GROUP, (rank + 1) * GROUP)
        completion = torch.tensor(answer[0][mine])
        reward = (completion % 7 == 0).float().sum(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        return torch.cat([prompts[mine], completion], 1), advantage

    def training_step(self) -> None:
        ids, advantage = self.generate_and_score()
        logp = self.model(ids[:, :-1]).gather(2, ids[:, 1:, None])[..., 0]
        device_wait(52)
        loss = -(logp[:, PROMPT - 1 :].mean(1) * advantage).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    client = CompletionClient() if rank == 0 else None
    trainer = GroupTrainer(client)
    tempo = Tempo("trl_completion_server", 680, 290)
    for step in tempo:
        if client is not None and tempo.after_onset(step):
            client.queue = "shared"
        trainer.training_step()
    if client is not None:
        client.close()
    tempo.report(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
