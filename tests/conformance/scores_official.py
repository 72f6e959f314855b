"""Record what the official scripts score, for `test_scores.py` to hold ours against.

    python -m tests.conformance.scores_official FOLDER

FOLDER holds the scripts under their own names: `evaluate-v1.1.py` and `evaluate-v2.0.py` (SQuAD),
`hotpot_evaluate_v1.py` (hotpotqa/hotpot @3635853), `2wikimultihop_evaluate_v1.1.py`
(Alab-NII/2wikimultihop @13800e5), `metrics/answer.py` and `metrics/metric.py`
(StonyBrookNLP/musique @922ac98), and `eval.py` (ictnlp/Auto-RAG @e1308da, `Auto-RAG/eval.py`).
Their functions are called unchanged on predictions that are made up here: gold answers with what
models do to them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

RECORD: Final = Path(__file__).with_name("scores_official.json")
CASES: Final = 1_200
SEED: Final = 16
WORDS: Final = (
    "Anna", "Berg", "Oslo", "the", "a", "an", "of", "The", "harbour", "harbor's", "1907", "7,000",
    "St.", "Jean-Luc", "O'Neill", "École", "straße", "北京", "and", "yes", "no", "Theatre", "A.B.",
    "“Dawn”", "e.g.", "(band)", "&", "$5", "co-op", "anthem", "x_y", "–", "İzmir", "e",
)  # fmt: skip
VERDICTS: Final = ("yes", "no", "Yes.", "No", "noanswer", "true", "false")
Case = tuple[list[str], str]


def made_up(rng: random.Random) -> Case:
    """Gold answers, and a prediction that has something of one of them."""
    if rng.random() < 0.12:
        golds = [rng.choice(VERDICTS)]
    elif rng.random() < 0.05:
        golds = []
    else:
        golds = [phrase(rng, 1, 5) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return golds, prediction(rng, rng.choice(golds) if golds else "")


def phrase(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def prediction(rng: random.Random, gold: str) -> str:
    words = gold.split()
    more = phrase(rng, 1, 4)
    return rng.choice((
        gold, "", rng.choice(VERDICTS), f"The {gold.upper()}.", gold.replace(" ", ""), more,
        " ".join(rng.sample(words, len(words))), " ".join([*words[:-1], more]),
        f"{more} {gold} {phrase(rng, 1, 30)}", " ".join(words * 2), f"  {gold}\n\n({more})!",
        rng.choice(("a ,", "an", "the...", "?")),
    ))  # fmt: skip


def module(folder: Path, name: str) -> Any:
    """A script as a module; what it imports beyond the standard library, and does not use to score,
    is empty."""
    for absent in ("ujson", "jsonlines", "numpy"):
        sys.modules.setdefault(absent, types.ModuleType(absent))
    spec = importlib.util.spec_from_file_location(Path(name).stem.replace("-", "_"), folder / name)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{folder / name} cannot be loaded")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def squad(script: Any, case: Case) -> list[float]:
    golds, said = case
    if not golds:
        return []
    return [
        float(script.metric_max_over_ground_truths(compare, said, golds))
        for compare in (script.exact_match_score, script.f1_score)
    ]


def squad2(script: Any, case: Case) -> list[float]:
    golds, said = case
    asked = {"id": "q", "answers": [{"text": gold} for gold in golds]}
    scores = script.get_raw_scores([{"paragraphs": [{"qas": [asked]}]}], {"q": said})
    return [float(own["q"]) for own in scores]


def hotpotqa(script: Any, case: Case) -> list[float]:
    golds, said = case
    if not golds:
        return []
    sums = dict.fromkeys(("em", "f1", "prec", "recall"), 0.0)
    script.update_answer(sums, said, golds[0])
    return [float(value) for value in sums.values()]


def wiki2(script: Any, case: Case) -> list[float]:
    golds, said = case
    if not golds:
        return []
    sums = dict.fromkeys(("em", "f1", "prec", "recall"), 0.0)
    script.update_answer(sums, said, set(golds))
    return [float(value) for value in sums.values()]


def musique(script: Any, case: Case) -> list[float]:
    golds, said = case
    if not golds:
        return []
    metric = script.AnswerMetric()
    metric(said, golds)
    return list(map(float, metric.get_metric()))


def autorag(script: Any, case: Case) -> list[float]:
    golds, said = case
    if not golds:
        return []
    own = script.normalize_answer
    return [float(any(script.isEM(own(gold), own(said)) for gold in golds))]


SCRIPTS: Final[dict[str, tuple[str, Callable[[Any, Case], list[float]]]]] = {
    "squad": ("evaluate-v1.1.py", squad),
    "squad2": ("evaluate-v2.0.py", squad2),
    "hotpotqa": ("hotpot_evaluate_v1.py", hotpotqa),
    "2wiki": ("2wikimultihop_evaluate_v1.1.py", wiki2),
    "musique": ("metrics/answer.py", musique),
    "autorag": ("eval.py", autorag),
}


def record(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    rng = random.Random(SEED)
    cases = [made_up(rng) for _ in range(CASES)]
    result: dict[str, Any] = {"cases": cases}
    for name, (file, scores) in SCRIPTS.items():
        script = module(folder, file)
        result[name] = [[round(value, 6) for value in scores(script, case)] for case in cases]
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    text = json.dumps(record(parser.parse_args().folder), ensure_ascii=False, separators=(",", ":"))
    RECORD.write_text(text.replace("]],", "]],\n") + "\n", encoding="utf-8")
