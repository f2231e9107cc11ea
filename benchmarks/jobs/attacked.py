"""A small training that is the same in every run, with room for an attack; see `benchmarks/attacks.py`."""
# ruff: noqa: E402 - what is executed is the attack

import os
import sys  # noqa: F401 - for the attacks

exec(os.environ.get("ATTACK_BEFORE", ""))
import hashlib
import time

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
iterations = int(os.environ.get("ATTACK_ITERATIONS", "600"))
data = torch.utils.data.TensorDataset(torch.randn(16 * iterations, 32), torch.randn(16 * iterations, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16)
x0 = torch.ones(4, 32)
pause = time.sleep
step_code = compile(os.environ.get("ATTACK_STEP", ""), "step", "exec")
end_code = compile(os.environ.get("ATTACK_END", ""), "end", "exec")


def train() -> None:
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(i, loss.item().hex(), flush=True)
        globals()["i"] = i
        exec(step_code, globals())
        pause(0.01)


if __name__ == "__main__":
    exec(os.environ.get("ATTACK_AFTER", ""))
    train()
    exec(end_code)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print("hash", digest.hexdigest(), flush=True)
