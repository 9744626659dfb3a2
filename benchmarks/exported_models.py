"""A run in Dragoman, CTranslate2 and ONNX Runtime: do they write the same sentences, and how fast is each?

    python benchmarks/exported_models.py --steps 1500            # trains a small Transformer on the phrasebook
    python benchmarks/exported_models.py --run RUN --source FILE --sentences 500 --rounds 5 --threads 2

The run is exported to CTranslate2 (float32 and int8) and to ONNX (float32) in a temporary folder. All programs
translate the same batches of sentences on the CPU in interleaved rounds, from token ids to token ids. Greedy search is
compared in all of them, beam search in Dragoman and CTranslate2. Speeds are medians over the rounds; `equal` is the
share of sentences that are those of Dragoman in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ctranslate2
import torch

import dragoman
from device_info import device_name
from dragoman.data import phrasebook
from dragoman.interop.ctranslate2.model_conversion import target_vocabulary, vocabulary
from dragoman.interop.onnx.onnx_exporter import GraphSessions
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, SearchRequest

Rows = list[list[int]]
Translate = Callable[[Rows], Rows]  # token ids of sources → token ids of targets without EOS

#: a Transformer as in Marian and in the paper, which all programs can compute
MARIAN_SHAPED = {
    "pre_norm": False,
    "norm": "layer",
    "position_encoding": "sinusoidal",
    "query_key_norm": False,
    "gated_ffn": False,
}


@dataclass(frozen=True)
class EngineResult:
    engine: str
    search: str
    sentences_per_second: float
    equal: float  # share of sentences equal to those of Dragoman in float32


def train_small_run(folder: Path, steps: int) -> Run:
    """Train a small Transformer on the phrasebook."""
    phrasebook.write(folder / "corpus", pairs=20_000, valid=200, test=1000)
    return dragoman.train(
        folder / "run",
        source=folder / "corpus" / "train.en",
        target=folder / "corpus" / "train.de",
        system="transformer",
        size="tiny",
        settings={"training.steps": steps, "training.device": "cpu", "training.recipe": "plain"}
        | {f"system.settings.{name}": value for name, value in MARIAN_SHAPED.items()},
    )


def dragoman_engine(run: Run, search: Beam) -> Translate:
    def translate(sources: Rows) -> Rows:
        source, lengths = run.pad_batch(sources)
        request = SearchRequest(source, lengths, keys=torch.arange(len(sources)))
        return [ranked[0].tokens for ranked in search.decode(run, request)]

    return translate


def ctranslate2_engine(run: Run, folder: Path, search: Beam, threads: int) -> Translate:
    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=threads)
    table = run.model.embedding_tables[0]
    assert table is not None
    source_names, target_names = vocabulary(run.source_tokenizer, len(table.weight)), target_vocabulary(run)
    ids = {name: token for token, name in enumerate(target_names)}
    suppressed = [[target_names[token]] for token in run.framing.suppressed]

    def translate(sources: Rows) -> Rows:
        results = translator.translate_batch(
            [[source_names[token] for token in row] for row in sources],
            beam_size=search.size,
            length_penalty=search.length_penalty,
            min_decoding_length=0,
            max_decoding_length=search.length_limit.max,
            suppress_sequences=suppressed,
        )
        return [[ids[name] for name in result.hypotheses[0]] for result in results]

    return translate


def onnx_engine(run: Run, folder: Path, search: Beam, threads: int) -> Translate:
    graphs, eos = GraphSessions(folder, threads), run.framing.eos

    def translate(sources: Rows) -> Rows:
        found = graphs.greedy(run, sources, search.length_limit.max or 0)
        return [row[:-1] if row[-1:] == [eos] else row for row in found]

    return translate


def measure(
    run: Run, engines: dict[tuple[str, str], Translate], sources: Rows, batch_size: int, rounds: int
) -> list[EngineResult]:
    """Translate all sources with every engine, in interleaved rounds; the first round is a warm-up."""
    by_length = sorted(sources, key=len)
    batches = [by_length[start : start + batch_size] for start in range(0, len(by_length), batch_size)]
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in engines}
    found: dict[tuple[str, str], Rows] = {}
    for _ in range(rounds + 1):
        for key, translate in engines.items():
            begin = time.perf_counter()
            found[key] = [row for batch in batches for row in translate(batch)]
            seconds[key].append(time.perf_counter() - begin)
    results = []
    for (engine, search), rows in found.items():
        equal = sum(map(list.__eq__, rows, found["Dragoman float32", search])) / len(rows)
        speed = len(sources) / median(seconds[engine, search][1:])
        results.append(EngineResult(engine, search, speed, equal))
    return results


def compare(run: Run, sources: Rows, rounds: int, threads: int, batch_size: int, beam_size: int) -> list[EngineResult]:
    """Export the run, and compare all programs."""
    limit = LengthLimit(0, 100, 100, 0)
    searches = {
        "greedy": Beam(1, 0.0, length_limit=limit, rank_unfinished="by_score"),
        f"beam {beam_size}": Beam(beam_size, 1.0, True, length_limit=limit, rank_unfinished="by_score"),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, to, dtype in (
            ("ct2", "ctranslate2", "float32"),
            ("int8", "ctranslate2", "int8"),
            ("onnx", "onnx", "float32"),
        ):
            print(run.export(folder / name, to, dtype=dtype).verification, file=sys.stderr)
        engines: dict[tuple[str, str], Translate] = {}
        for name, search in searches.items():
            engines["Dragoman float32", name] = dragoman_engine(run, search)
            engines["CTranslate2 float32", name] = ctranslate2_engine(run, folder / "ct2", search, threads)
            engines["CTranslate2 int8", name] = ctranslate2_engine(run, folder / "int8", search, threads)
            if search.size == 1:
                engines["ONNX Runtime float32", name] = onnx_engine(run, folder / "onnx", search, threads)
        return measure(run, engines, sources, batch_size, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run that all programs can compute; by default one is trained")
    parser.add_argument("--source", type=Path, help="sentences to translate; by default the phrasebook's test set")
    parser.add_argument("--steps", type=int, default=1500, help="training steps, if no run is given")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.run is None:
            run = train_small_run(folder, options.steps)
        else:
            run = dragoman.load(options.run, device="cpu")
        source = options.source
        if source is None:
            if not (folder / "corpus").exists():
                phrasebook.write(folder / "corpus", pairs=100, valid=10, test=1000)
            source = folder / "corpus" / "test.en"
        texts = source.read_text(encoding="utf-8").splitlines()[: options.sentences]
        results = compare(
            run, run.encode_sources(texts), options.rounds, options.threads, options.batch_size, options.beam_size
        )
    if options.json:
        document: dict[str, Any] = {"device": device_name(torch.device("cpu")), "results": list(map(asdict, results))}
        print(json.dumps(document, indent=1))
        return
    print(f"{device_name(torch.device('cpu'))}, batches of {options.batch_size}, {options.rounds} rounds")
    print(f"{'engine':24}{'search':10}{'sentences/s':>12}{'ratio':>8}{'equal':>8}")
    ours = {result.search: result for result in results if result.engine == "Dragoman float32"}
    for result in results:
        ratio = result.sentences_per_second / ours[result.search].sentences_per_second
        print(f"{result.engine:24}{result.search:10}{result.sentences_per_second:12.1f}{ratio:8.2f}{result.equal:8.1%}")


if __name__ == "__main__":
    main()
