"""Train many corpora with the default settings and with variants of them, several at a time, and tabulate the results.

    python benchmarks/default_settings.py DATA --corpora g2p-low,scan-simple --variants variants.json --parallel 8 \
        --output results.jsonl
    python benchmarks/default_settings.py DATA --corpora g2p-medium --seeds 1,2,3 --test --output results.jsonl
    python benchmarks/default_settings.py --show results.jsonl

DATA holds the corpora of `dragoman recipe`, compressed or not (see `CORPORA`). `NAME@N` is a corpus of which N pairs,
at equal distances, are trained on; `inflection@N` generates N forms of an invented language. A variant is a name and
its settings by their dotted names, as JSON: {"wide": {"system.settings.model_dim": 512}}; `default` has none and is
always there. Settings that begin with `pretraining.` are those of the pretraining of a corpus that has one. Every
training validates on the validation set of its corpus, with greedy search and with the search that the run has chosen;
`--test` also decodes the test sets, which no setting may be chosen by. Results are appended to `--output`, one JSON
line per run, as soon as they exist; runs that are already there, or in the files of `--done`, are not repeated.
Validations and scores of runs in progress are appended to a file beside it, OUTPUT.progress, so that nothing is lost
if the machine is given back. `--jobs` reads the runs and their order from JSON lines instead, such as

    {"corpus": "scan-simple", "variant": "wide", "settings": {"system.settings.model_dim": 512}, "seed": 1}

On a machine that is lent for ten minutes at a time, one call per table fills a GPU, and a later call with the results
of the earlier ones as `--done` continues. A job is only started if it would probably end within `--minutes`, which the
longest job of the same process tells. Several processes share a GPU well with NVIDIA's MPS:

    nvidia-cuda-mps-control -d
    RUN="python benchmarks/default_settings.py DATA --done done/*.jsonl --device cuda --test --minutes 9.3"
    $RUN --parallel 13 --corpora g2p-medium --seeds 1,2,3 --output $OUT/a.jsonl
    $RUN --parallel 3 --corpora multi30k,cmudict,tatoeba --output $OUT/b.jsonl
    $RUN --parallel 2 --corpora cogs,debian,scan --output $OUT/c.jsonl

On an H200, 20 trainings of 8,000 pronunciations take 200 s, 13 at a time. Large jobs (COGS, CMUdict, Multi30k, Tatoeba,
Debian) should not run beside small ones, which they slow down twenty times: first all small ones together, then one to
three large ones at a time. Twenty configurations and their halving cost six to seven complete trainings:

    dragoman sweep /tmp/kor --source kor_train.tsv --valid-source kor_dev.tsv --random 20 --parallel 14 \
        --set system.name=hard-monotonic,transformer --set system.size=tiny,small \
        --set system.settings.dropout=0.1..0.5 --set training.batch_tokens=512,1024,2048,4096 \
        --set training.learning_rate=0.3e-2..3e-2:log
    dragoman sweep /tmp/kor --show --table markdown > $OUT/kor.md
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

G2P_LOW = ["ady", "gre", "ice", "ita", "khm", "lav", "mlt_latn", "rum", "slv", "wel_sw"]
G2P_MEDIUM = ["arm_e", "bul", "dut", "fre", "geo", "hbs_latn", "hun", "jpn_hira", "kor", "vie_hanoi"]


@dataclass(frozen=True)
class Corpus:
    """Files of a corpus, relative to the data folder and without .gz: one TSV file per split, or source and target."""

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()  # empty: held out from the training pairs
    tests: dict[str, tuple[str, ...]] = field(default_factory=dict)
    metric: str = "exact"
    settings: dict[str, Any] = field(default_factory=dict)  # that no default can choose, such as the system `tagger`
    pretraining: dict[str, Any] = field(default_factory=dict)  # settings; empty: none


def pair(folder: str, stem: str, source: str, target: str) -> tuple[str, str]:
    return f"{folder}/{stem}.{source}", f"{folder}/{stem}.{target}"


def multi30k(target: str) -> Corpus:
    tests = {f"test_{year}": pair("multi30k", f"test_{year}_flickr", "en", target) for year in (2016, 2017)}
    files = (pair("multi30k", split, "en", target) for split in ("train", "val"))
    return Corpus(*files, tests=tests, metric="bleu")


def corpora() -> dict[str, Corpus]:
    """Return all corpora by name."""
    found = {}
    for setting, languages in (("low", G2P_LOW), ("medium", G2P_MEDIUM)):
        for language in languages:
            stem = f"g2p_2021/{setting}/{language}"
            tests = {"test": (f"{stem}_test.tsv",)}
            found[f"g2p-{setting}-{language}"] = Corpus((f"{stem}_train.tsv",), (f"{stem}_dev.tsv",), tests)
    found["cmudict"] = Corpus(("cmudict/train.tsv",), tests={"test": ("cmudict/test_all_pronunciations.tsv",)})
    for split in ("simple", "length", "jump"):
        found[f"scan-{split}"] = Corpus((f"scan/{split}_train.tsv",), tests={"test": (f"scan/{split}_test.tsv",)})
    tests = {"test": ("cogs/test.tsv",), "gen": ("cogs/gen.tsv",)}
    found["cogs"] = Corpus(("cogs/train.tsv",), ("cogs/dev.tsv",), tests)
    found |= {f"multi30k-{target}": multi30k(target) for target in ("de", "fr")}
    splits = [pair("tatoeba_de", split, "en", "de") for split in ("train", "dev", "test")]
    found["tatoeba"] = Corpus(splits[0], splits[1], {"test": splits[2]}, "bleu")
    splits = [pair("debian_synopsis", split, "text", "synopsis") for split in ("train", "val", "test")]
    found["debian"] = Corpus(splits[0], splits[1], {"test": splits[2]}, "rouge-l")
    tagging = Corpus(("ud_ewt/train.tsv",), ("ud_ewt/dev.tsv",), {"test": ("ud_ewt/test.tsv",)}, "accuracy")
    found["ud-ewt"] = replace(tagging, settings={"system.name": "tagger"})
    masked = {"system.name": "roberta", "system.size": "small", "training.steps": 4000}
    found["ud-ewt-pretrained"] = replace(tagging, pretraining=masked)
    return found


CORPORA = corpora()
PRETRAINING = "pretraining."  # begins the names of settings of the pretraining


def select_corpora(names: str) -> list[str]:
    """Return the corpora whose names are given, or begin with what is given and a hyphen."""
    selected = []
    for name, _, count in (part.partition("@") for part in names.split(",")):
        matching = [corpus for corpus in (*CORPORA, "inflection") if corpus == name or corpus.startswith(f"{name}-")]
        if not matching:
            raise SystemExit(f"unknown corpus {name}: known are {', '.join(CORPORA)}")
        selected += [f"{corpus}@{count}" if count else corpus for corpus in matching]
    return list(dict.fromkeys(selected))


@dataclass(frozen=True)
class Job:
    corpus: str
    variant: str
    settings: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        return f"{self.corpus} {self.variant} {self.seed}"


# ---- a worker


def existing(data: Path, names: tuple[str, ...]) -> list[Path]:
    return [data / name if (data / name).exists() else data / f"{name}.gz" for name in names]


def open_corpus(name: str, data: Path, folder: Path) -> tuple[Corpus, Path]:
    """Return a corpus and the folder of its files: `data`, or `folder` if it is generated, or a part is trained on."""
    name, _, count = name.partition("@")
    if name == "inflection":
        from dragoman.data.generated_tasks import write_generated

        write_generated(name, folder, {"train": int(count or 5000)})
        return Corpus(("train.tsv",), ("valid.tsv",), {"test": ("test.tsv",)}), folder
    corpus = CORPORA[name]
    if not count:
        return corpus, data
    folder.mkdir(parents=True)
    for name, path in zip(corpus.train, existing(data, corpus.train)):
        all_lines = list(lines(path))
        chosen = [all_lines[index * len(all_lines) // int(count)] for index in range(min(int(count), len(all_lines)))]
        (folder / Path(name).name).write_text("\n".join(chosen) + "\n", encoding="utf-8")
    return replace(corpus, train=tuple(str(folder / Path(name).name) for name in corpus.train)), data


def lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def read_pairs(data: Path, names: tuple[str, ...], metric: str) -> tuple[list[str], list[list[str]]]:
    """Return sources and their references; consecutive lines of a TSV file with equal sources are one source."""
    paths = existing(data, names)
    if len(paths) == 2:
        return list(lines(paths[0])), [[line] for line in lines(paths[1])]
    if metric == "accuracy":  # a sentence may occur again
        rows = [line.split("\t") for line in lines(paths[0])]
        return [words for words, _ in rows], [[tags] for _, tags in rows]
    references: dict[str, list[str]] = {}
    for line in lines(paths[0]):
        source, target, *others = line.split("\t")
        features = [others[0]] if paths[0].name in ("valid.tsv", "test.tsv") and others else []  # of inflection
        references.setdefault("\t".join([source, *features]), []).append(target)
    return list(references), list(references.values())


def score(outputs: list[str], references: list[list[str]], metric: str) -> float:
    """Return exact match (with any reference), or another metric of single references."""
    from dragoman.evaluation.text_metrics import text_metric

    if metric == "exact":
        return 100 * mean(output in targets for output, targets in zip(outputs, references))
    if metric == "accuracy":
        tags = [(output.split(), targets[0].split()) for output, targets in zip(outputs, references)]
        return 100 * sum(sum(map(str.__eq__, *pair)) for pair in tags) / sum(len(gold) for _, gold in tags)
    return text_metric(metric)(outputs, [targets[0] for targets in references]).value


def run_job(job: Job, data: Path, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train and decode one run; return what is tabulated."""
    import dragoman
    from dragoman.evaluation.rouge import lead_sentences

    corpus, data = open_corpus(job.corpus, data, folder.parent / "data")
    validations: list[dict[str, float]] = []
    messages: list[str] = []

    starter = os.getppid()

    def listen(event: Any) -> None:
        if os.getppid() != starter:  # the benchmark was killed
            sys.exit("stopped")
        if isinstance(event, dragoman.ValidationEvent):
            validations.append({"step": event.step, "loss": event.loss, **event.metrics})
            note(options.output, job, validations[-1])
        elif isinstance(event, dragoman.MessageEvent):
            messages.append(event.text)

    files = existing(data, corpus.train)
    valid = existing(data, corpus.valid)
    common = {"training.seed": job.seed, "training.device": options.device}
    own = {name: value for name, value in job.settings.items() if not name.startswith(PRETRAINING)}
    settings = common | corpus.settings | own
    start = time.monotonic()
    if corpus.pretraining:
        texts = [[write_sources(path, folder.parent)] for path in (files[0], valid[0])]
        more = {name.removeprefix(PRETRAINING): job.settings[name] for name in job.settings.keys() - own.keys()}
        parent = folder.parent / "pretrained"
        dragoman.train(parent, source=texts[0], valid_source=texts[1], settings=common | corpus.pretraining | more)
        settings["training.start_from"] = str(parent)
    run = dragoman.train(
        folder,
        source=files[:1],
        target=files[1:],
        valid_source=valid[:1],
        valid_target=valid[1:],
        settings=settings,
        callback=listen,
    )
    result: dict[str, Any] = {"seconds": time.monotonic() - start, "steps": validations[-1]["step"]}
    result |= {"loss": min(record["loss"] for record in validations)}
    search, config = run.config.search, run.config
    result |= {"beam": search.beam_size, "alpha": search.length_penalty, "batch_tokens": config.training.batch_tokens}
    result |= {"system": config.system.name, "size": config.system.size}
    result |= {"parameters": sum(parameter.numel() for parameter in run.model.parameters())}
    splits = {"valid": corpus.valid} if corpus.valid else {}
    splits |= corpus.tests if options.test else {}
    for name, names in splits.items():
        sources, references = read_pairs(data, names, corpus.metric)
        beam_sizes = {name: None} | ({f"{name} greedy": 1} if run.model.can_generate and not options.no_greedy else {})
        if corpus.metric == "rouge-l":
            result[f"{name} lead"] = score(lead_sentences(sources), references, corpus.metric)
        for label, beam_size in beam_sizes.items():
            started = time.monotonic()
            if run.model.can_generate:
                outputs = [translation.text for translation in run.translate(sources, beam_size, alignment=False)]
            else:
                outputs = [" ".join(sentence.tags) for sentence in run.tag(sources)]
            result[label] = score(outputs, references, corpus.metric)
            result.setdefault("decoding_seconds", {})[label] = round(time.monotonic() - started, 1)
            note(options.output, job, {label: result[label]})
            if options.keep_outputs:
                path = Path(options.keep_outputs) / f"{job.key.replace(' ', '.')}.{label.replace(' ', '-')}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(outputs) + "\n", encoding="utf-8")
    if not corpus.valid:  # held out: as validated, with the search of the validation
        keys = {"exact": "exact_match", "bleu": "bleu", "rouge-l": "rouge_l", "accuracy": "accuracy"}
        values = [record[key] for record in validations if (key := keys[corpus.metric]) in record]
        result["valid"] = max(values, default=0.0)
    result["validations"] = validations
    result["choices"] = [line for line in messages if "=" in line]
    return result


def write_sources(tsv: Path, folder: Path) -> Path:
    """Write the first column of a TSV file as a text, and return its path."""
    path = folder / f"{tsv.name.partition('.')[0]}.txt"
    path.write_text("".join(line.split("\t")[0] + "\n" for line in lines(tsv)), encoding="utf-8")
    return path


def note(output: Path, job: Job, values: dict[str, Any]) -> None:
    """Append what is known about a run in progress to the file beside the results."""
    with output.with_name(f"{output.name}.progress").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"run": job.key, "time": time.strftime("%H:%M:%S")} | values) + "\n")


def work(jobs: Any, results: Any, data: Path, options: argparse.Namespace) -> None:
    """Train one job after the other until there are none left, or too little time for one."""
    import torch

    torch.set_num_threads(options.threads)
    longest = 0.0  # seconds of the jobs so far
    while True:
        try:
            job = jobs.get(timeout=5)
        except queue.Empty:
            return
        started = time.time()
        if started + longest > options.deadline:
            return
        folder = Path(tempfile.mkdtemp(prefix="run-"))
        try:
            record = run_job(job, data, options, folder / "run")
        except Exception:
            record = {"error": traceback.format_exc()[-1500:]}
        shutil.rmtree(folder, ignore_errors=True)
        longest = max(longest, time.time() - started)
        identity = {"corpus": job.corpus, "variant": job.variant, "seed": job.seed, "settings": job.settings}
        results.put(identity | record)
        if "error" in record:
            return  # a new process continues: after some errors a GPU is of no use to this one


# ---- all of them


def load(path: Path) -> list[dict[str, Any]]:
    # the last line may be incomplete, if a machine was given back
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]] if path.exists() else []


def show(records: list[dict[str, Any]]) -> None:
    """Print one table per corpus, and the mean over the corpora of each kind."""
    splits = ("valid", "test", "gen", "test_2016", "test_2017")
    columns = [f"{split}{search}" for split in splits for search in ("", " greedy", " lead")]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if "error" in record:
            print(f"{record['corpus']} {record['variant']} {record['seed']} failed: {record['error'][-300:]}")
            continue
        groups[record["corpus"], record["variant"]].append(record)
    shown = [column for column in columns if any(column in record for rows in groups.values() for record in rows)]
    print(f"| corpus | variant | runs | steps | seconds | {' | '.join(shown)} |\n{'|---' * (5 + len(shown))}|")
    totals: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for (corpus, variant), rows in groups.items():
        cells = []
        for column in shown:
            values = [record[column] for record in rows if column in record]
            if values:
                totals[corpus.rsplit("-", 1)[0], variant, column].append(mean(values))
            deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.2f}{deviation}" if values else "")
        seconds, steps = (f"{mean(record[name] for record in rows):.0f}" for name in ("seconds", "steps"))
        print(f"| {corpus} | {variant} | {len(rows)} | {steps} | {seconds} | {' | '.join(cells)} |")
    for (kind, variant), count in {key[:2]: len(values) for key, values in totals.items()}.items():
        if count > 1:
            means = [totals[kind, variant, column] for column in shown]
            cells = [f"{mean(values):.2f}" if values else "" for values in means]
            print(f"| mean of {count}: {kind} | {variant} | | | | {' | '.join(cells)} |")


def planned_jobs(options: argparse.Namespace) -> list[Job]:
    """Return all runs in the order of training: those of `--jobs`, or each variant of each corpus, seed by seed."""
    if options.jobs:
        return [Job(**record) for record in load(options.jobs)]
    variants = {"default": {}} | (json.loads(options.variants.read_text()) if options.variants else {})
    return [
        Job(corpus, name, variants[name], seed)
        for seed in map(int, options.seeds.split(","))
        for name in (options.only.split(",") if options.only else variants)
        for corpus in select_corpora(options.corpora)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--corpora", help="names or beginnings of names, such as g2p-low or multi30k-de")
    parser.add_argument("--variants", type=Path, help="JSON file")
    parser.add_argument("--jobs", type=Path, help="JSON lines: runs in the order of training")
    parser.add_argument("--only", help="names of the variants to train; by default all, and `default`")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", action="store_true", help="decode the test sets too")
    parser.add_argument("--no-greedy", action="store_true")
    parser.add_argument("--keep-outputs", help="folder for the decoded texts")
    parser.add_argument("--minutes", type=float, default=1e6, help="no job starts that would probably end later")
    parser.add_argument("--output", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="results of earlier calls")
    parser.add_argument("--show", type=Path, nargs="+", help="only print the table of these results")
    options = parser.parse_args()
    if options.show:
        show([record for path in options.show for record in load(path)])
        return
    options.deadline = time.time() + 60 * options.minutes
    earlier = [record for path in (options.output, *options.done) for record in load(path)]
    done = {f"{r['corpus']} {r['variant']} {r['seed']}" for r in earlier if "error" not in r}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    pending = 0
    for job in planned_jobs(options):
        if job.key not in done:
            jobs.put(job)
            pending += 1
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "false"}
    arguments = (jobs, results, options.data.resolve(), options)

    def start_worker() -> Any:
        worker = context.Process(target=work, args=arguments)
        worker.start()
        return worker

    workers = [start_worker() for _ in range(min(options.parallel, pending))]
    with options.output.open("a", encoding="utf-8") as file:
        while pending:
            try:
                record = results.get(timeout=2)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    break
                continue
            pending -= 1
            if "error" in record and pending:
                workers.append(start_worker())
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            print(
                record["corpus"],
                record["variant"],
                record["seed"],
                record.get("valid"),
                record.get("error", "")[-400:],
                flush=True,
            )
    for worker in workers:
        worker.join(10)
    show([record for path in (*options.done, options.output) for record in load(path)])


if __name__ == "__main__":
    main()
