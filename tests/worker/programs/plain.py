"""A small training in one process: loader, model, optimizer. Says its losses, bit by bit."""

import argparse
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    context = "spawn" if arguments.spawn and arguments.workers else None
    loader = DataLoader(data, batch_size=4, num_workers=arguments.workers, multiprocessing_context=context)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done, micro = 0, 0
    while done < arguments.iterations:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            micro += 1
            if micro % arguments.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if arguments.pause:
                time.sleep(arguments.pause)
            if done >= arguments.iterations:
                break
    sys.stdout.write(f"{loss.item().hex()}\n")


if __name__ == "__main__":
    main()
