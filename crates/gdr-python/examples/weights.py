"""A trainer and two engines: the engines pull the weights of a small transformer after each step.

    python weights.py           on the GPU, or on the CPU where there is none

The trainer makes random weights, trains, pushes after each step and prints the logits of a fixed input. Each
engine is a process of its own, which pulls into a model of other weights, and whose logits must be the
same ones.
"""

import argparse
import subprocess
import sys

import gdr.torch
import torch

STEPS = 5
VOCABULARY, WIDTH, LENGTH = 512, 128, 32
LIMIT_S = 120.0


class Transformer(torch.nn.Module):
    """Two layers, with the embedding as the last matrix, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embed(tokens)) @ self.embed.weight.t() / WIDTH**0.5


def tokens(device: str) -> torch.Tensor:
    """The fixed input."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (4, LENGTH), generator=generator).to(device)


def logits(model: Transformer, device: str) -> str:
    """A number that two models have in common only if their weights are the same."""
    with torch.no_grad():
        return model.eval()(tokens(device)).double().sum().item().hex()


def train(device: str) -> None:
    torch.manual_seed(0)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with gdr.torch.publish(model, "policy") as publisher:
        engines = [
            subprocess.Popen(
                [sys.executable, __file__, "--device", device, "--pull", publisher.source],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for step in range(1, STEPS + 1):
                model.train()
                output, wanted = model(tokens(device)), tokens(device).roll(-1, dims=1)
                loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), wanted.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                publisher.push(step)
                own = logits(model, device)
                for number, engine in enumerate(engines):
                    engine.stdin.write("next\n")
                    engine.stdin.flush()
                    pulled = engine.stdout.readline().split()
                    if pulled != [str(step), own]:
                        raise SystemExit(f"engine {number} has {pulled}, and the trainer {[str(step), own]}")
                print(f"step {step}: loss {loss.item():.3f}, both engines have the same logits")
        finally:
            for engine in engines:
                engine.stdin.close()
                if engine.wait(LIMIT_S):
                    raise SystemExit("an engine failed")


def infer(device: str, source: str) -> None:
    model = Transformer().to(device)
    steps = gdr.torch.follow(source, into=model, timeout=LIMIT_S)
    for _ in sys.stdin:
        step = next(steps)
        print(step, logits(model, device), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pull", metavar="SOURCE", help="be an engine of this trainer")
    options = parser.parse_args()
    # The same sum on both sides needs the same order of additions.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_num_threads(1)
    if options.pull:
        infer(options.device, options.pull)
    else:
        train(options.device)
