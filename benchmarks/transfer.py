"""Compare training with and without pretraining: translation from 2,000 pairs, a new language, and tagging.

    python benchmarks/transfer.py translation --data MULTI30K     # train/val/test_2016_flickr .en and .de, plain or .gz
    python benchmarks/transfer.py languages --data MULTI30K       # the same, and .fr
    python benchmarks/transfer.py tagging --data UD_EWT           # train/dev/test .tsv: words, tab, tags; plain or .gz

Every training is a `dragoman` command, which is printed, with default settings except those shown here. Several seeds
run at the same time. Multi30k: https://github.com/multi30k/dataset; UD English EWT:
https://universaldependencies.org.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PAIRS = 2000
OPTIONS: list[str] = []  # further options of every training


def run_command(*arguments: object) -> str:
    command = [str(argument) for argument in arguments]
    if command[0] == "train":
        command += OPTIONS
    if "--start-from" in command and "--size" in command:  # the size is that of the run to start from
        position = command.index("--size")
        del command[position : position + 2]
    print("dragoman", *command, flush=True)
    done = subprocess.run([sys.executable, "-m", "dragoman", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def lines(folder: Path, name: str) -> list[str]:
    """Read the lines of a corpus file, plain or gzipped."""
    path = folder / name
    if path.exists():
        return path.read_text(encoding="utf-8").splitlines()
    with gzip.open(f"{path}.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def write(path: Path, content: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    return path


def score(run: Path, source: Path, reference: Path, metric: str) -> float:
    answer = run_command("evaluate", run, "--source", source, "--reference", reference, "--metrics", metric, "--json")
    value = json.loads(answer)["scores"][0]["value"]
    print(run, metric, value, flush=True)
    return value


def bleu_into(language: str, folder: Path, source: Path, reference: Path) -> float:
    """Return the BLEU of a multilingual run for translations into one of its languages."""
    import sacrebleu

    import dragoman

    run = dragoman.load(folder).with_languages(target=language)
    translations = run.translate(source.read_text(encoding="utf-8").splitlines(), alignment=False)
    references = [reference.read_text(encoding="utf-8").splitlines()]
    value = sacrebleu.corpus_bleu([translation.text for translation in translations], references).score
    print(folder, language, "bleu", value, flush=True)
    return value


def translation(data: Path, work: Path, seed: int) -> dict[str, float]:
    """English to German, with and without pretraining by denoising German text and the sources of the pairs."""
    few, whole, valid, test = [], {}, {}, {}
    for language in ("en", "de"):
        train = lines(data, f"train.{language}")
        few += [write(work / f"few.{language}", train[:PAIRS])]
        whole[language] = write(work / f"train.{language}", train)
        valid[language] = write(work / f"valid.{language}", lines(data, f"val.{language}"))
        test[language] = write(work / f"test.{language}", lines(data, f"test_2016_flickr.{language}"))
    pairs = ["--source", few[0], "--target", few[1], "--valid-source", valid["en"], "--valid-target", valid["de"]]
    frequent_validation = ["--set", "training.validation_interval=100", "--set", "training.validation_sentences=300"]
    frequent_validation += ["--set", "training.patience=10", "--seed", seed]
    text = ["--source", whole["de"], "--source", few[0], "--valid-source", valid["de"]]
    bart = ["--system", "bart", "--size", "small"]
    rare_validation = ["--set", "training.validation_interval=1000", "--seed", seed]
    run_command("train", work / "denoised", *bart, *text, "--steps", 7000, "--minutes", 3.5, *rare_validation)
    run_command(
        "train", work / "tuned", "--start-from", work / "denoised", *pairs, "--steps", 2500, *frequent_validation
    )
    run_command("train", work / "same", *bart, *pairs, "--steps", 4000, *frequent_validation)
    run_command("train", work / "default", *pairs, "--steps", 4000, *frequent_validation)
    names = {"denoised, then tuned": "tuned", "the same system alone": "same", "the default system alone": "default"}
    return {title: score(work / name, test["en"], test["de"], "bleu") for title, name in names.items()}


def languages(data: Path, work: Path, seed: int) -> dict[str, float]:
    """English to German from 2,000 pairs: from scratch, from a run into French, and added to that run."""
    few, whole, valid, test = {}, {}, {}, {}
    for language in ("en", "fr", "de"):
        train = lines(data, f"train.{language}")
        few[language] = write(work / f"few.{language}", train[:PAIRS])
        whole[language] = write(work / f"train.{language}", train)
        valid[language] = write(work / f"valid.{language}", lines(data, f"val.{language}"))
        test[language] = write(work / f"test.{language}", lines(data, f"test_2016_flickr.{language}"))

    def corpus(files: dict[str, Path], target: str, part: str = "") -> list[object]:
        return [f"--{part}source", files["en"], f"--{part}target", files[target]]

    own = ["--seed", seed]
    small = [*own, "--set", "training.validation_interval=100", "--set", "training.patience=10"]
    small += ["--set", "training.validation_sentences=300", "--steps", 4000]
    french, german = corpus(valid, "fr", "valid-"), corpus(valid, "de", "valid-")
    with ThreadPoolExecutor(1) as pool:  # at the same time
        scratch = pool.submit(run_command, "train", work / "scratch", *corpus(few, "de"), *german, *small)
        run_command("train", work / "french", *corpus(whole, "fr"), *french, *own)
        scratch.result()
    new = ["--start-from", work / "french", "--add-language", "de", "--like", "fr"]
    run_command("train", work / "tuned", *new, "--to", "de", *corpus(few, "de"), *german, *small)
    both = [*corpus(few, "de"), "--languages", "en:de", *corpus(whole, "fr"), "--languages", "en:fr"]
    run_command(
        "train", work / "added", *new, *both, *german, *french, "--sampling-temperature", 5, "--steps", 4000, *own
    )
    return {
        "en-de from scratch": score(work / "scratch", test["en"], test["de"], "bleu"),
        "en-de, tuned from en-fr": bleu_into("de", work / "tuned", test["en"], test["de"]),
        "en-de, added to en-fr": bleu_into("de", work / "added", test["en"], test["de"]),
        "en-fr before": score(work / "french", test["en"], test["fr"], "bleu"),
        "en-fr after adding en-de": bleu_into("fr", work / "added", test["en"], test["fr"]),
    }


def tagging(data: Path, work: Path, seed: int) -> dict[str, float]:
    """Part-of-speech tagging, with and without masked language modeling of the same corpus."""
    train, valid = (write(work / f"{name}.tsv", lines(data, f"{name}.tsv")) for name in ("train", "dev"))
    words = {n: write(work / f"{n}.words", [line.split("\t")[0] for line in lines(data, f"{n}.tsv")]) for n in SPLITS}
    gold = write(work / "test.tags", [line.split("\t")[1] for line in lines(data, "test.tsv")])
    stop = ["--set", "training.validation_interval=250", "--set", "training.patience=6", "--seed", seed]
    tags = ["--source", train, "--valid-source", valid]
    roberta = ["--system", "roberta", "--size", "small"]
    text = ["--source", words["train"], "--valid-source", words["dev"]]
    run_command("train", work / "masked", *roberta, *text, "--steps", 4000, *stop)
    run_command("train", work / "tuned", "--start-from", work / "masked", *tags, "--steps", 2000, *stop)
    run_command("train", work / "same", *roberta, *tags, "--steps", 4000, *stop)
    run_command("train", work / "tagger", "--system", "tagger", "--size", "small", *tags, "--steps", 4000, *stop)
    names = {"masked words, then tags": "tuned", "the same system, tags alone": "same", "tagger": "tagger"}
    return {title: score(work / name, words["test"], gold, "accuracy") for title, name in names.items()}


SPLITS = ("train", "dev", "test")
TASKS = {"translation": translation, "languages": languages, "tagging": tagging}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--work", type=Path, default=Path("runs/transfer"), help="folder of the runs")
    parser.add_argument("--options", default="", help="further options of all trainings: '--size tiny --steps 10'")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    OPTIONS.extend(shlex.split(arguments.options))
    folders = {seed: arguments.work / arguments.task / str(seed) for seed in arguments.seeds}
    for folder in folders.values():
        folder.mkdir(parents=True)
    with ThreadPoolExecutor(len(folders)) as pool:
        jobs = {
            seed: pool.submit(TASKS[arguments.task], arguments.data, folder, seed) for seed, folder in folders.items()
        }
    results = {seed: job.result() for seed, job in jobs.items()}
    for title in next(iter(results.values())):
        values = [one[title] for one in results.values()]
        each = ", ".join(f"{value:.2f}" for value in values)
        print(f"{title:30} {sum(values) / len(values):6.2f}   (seeds {', '.join(map(str, results))}: {each})")


if __name__ == "__main__":
    main()
