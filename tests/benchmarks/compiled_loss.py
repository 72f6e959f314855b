"""What `revelator compile` costs a model, on 500 tokens of the sample corpus.

    python -m tests.benchmarks.compiled_loss SOURCE COMPILED

SOURCE is the folder of float weights that COMPILED was made of. Prints the loss per token of the
float model, of the weights that the graph holds multiplied as floats, and of the engine itself
(which multiplies integers, unless it was compiled otherwise); the divergence of the second from the
first; and how often both find the same token likeliest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from service.core.settings import EngineSettings
from service.engines.embedded import EmbeddedGenerator
from service.engines.signals import ScoreRequest, Scoring
from tests.stubs.tiny_compiled import save_dequantised

CHARACTERS = 2000


def sample_text() -> str:
    path = Path(__file__).parents[2] / "service" / "models" / "sample" / "corpus.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return "\n".join(f"{row['title']}. {row['text']}" for row in rows)[:CHARACTERS]


async def read(folder: Path, text: str) -> Scoring:
    engine = EmbeddedGenerator("embedded", EngineSettings(kind="embedded", model=str(folder)))
    scoring = await engine.score(ScoreRequest(text=text, bos=True))
    await engine.aclose()
    return scoring


def log_chances(folder: Path, ids: list[int]) -> Any:
    """(tokens, vocabulary) in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return network(torch.tensor([ids])).logits[0].log_softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path)
    parser.add_argument("compiled", type=Path)
    asked = parser.parse_args()
    text = sample_text()
    scoring = asyncio.run(read(asked.compiled, text))
    ids = [token.id for token in scoring.tokens]
    whole = log_chances(asked.source, ids)
    with tempfile.TemporaryDirectory() as folder:
        held = log_chances(save_dequantised(asked.source, asked.compiled, Path(folder)), ids)
    places = range(len(ids) - 1)
    for name, logs in (("float weights", whole), ("weights of the graph", held)):
        print(f"{name:22} loss {-fmean(float(logs[n, ids[n + 1]]) for n in places):.3f}")
    told = [token.logprob for token in scoring.tokens if token.logprob is not None]
    print(f"{'the engine':22} loss {-fmean(told):.3f}")
    print(f"divergence {float((whole.exp() * (whole - held)).sum(-1).mean()):.3f} nats a token")
    print(f"same likeliest token {float((whole.argmax(-1) == held.argmax(-1)).float().mean()):.3f}")


if __name__ == "__main__":
    main()
