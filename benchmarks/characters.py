"""Train Dragoman and yoyodyne on a character-level task with equal time and cores, and print their word error rates.

    python benchmarks/characters.py --yoyodyne VENV/bin/yoyodyne --g2p FOLDER --languages low/ita,medium/dut --minutes 5
    python benchmarks/characters.py --yoyodyne VENV/bin/yoyodyne --inflection 5000 --minutes 5

FOLDER holds the languages of the SIGMORPHON 2021 task on pronunciation, LANGUAGE_train.tsv.gz, _dev and _test.
`--inflection N` generates N forms of an invented language (lemma, form, features). Each training is one process with
`--threads` threads, which stops after `--minutes`; the best checkpoint by validation accuracy decodes the set of
`--split`. Dragoman trains each of `--systems` with default settings except those after `--`, which are passed on.
yoyodyne, which has no defaults for its models, trains the settings of its own examples (`configs/`), greedy search.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.data.generated_tasks import write_generated


@dataclass(frozen=True)
class Task:
    """A corpus of TSV files: train.tsv, dev.tsv and test.tsv with source, target and, in inflection, features."""

    name: str
    folder: Path
    has_features: bool = False

    def columns(self, split: str) -> list[list[str]]:
        return [line.split("\t") for line in (self.folder / f"{split}.tsv").read_text("utf-8").splitlines()]


def g2p_task(data: Path, language: str, folder: Path) -> Task:
    """Write the files of a language such as low/ita to a new folder."""
    folder.mkdir()
    for split in ("train", "dev", "test"):
        text = gzip.decompress((data / f"{language}_{split}.tsv.gz").read_bytes())
        (folder / f"{split}.tsv").write_bytes(text)
    return Task(language, folder)


def inflection_task(size: int, folder: Path) -> Task:
    """Generate `size` forms to train on, and 500 each for validation and test, in a new folder."""
    write_generated("inflection", folder, {"train": size})
    (folder / "valid.tsv").rename(folder / "dev.tsv")
    return Task(f"inflection, {size:,} forms", folder, has_features=True)


# ---- Dragoman


def train_ours(task: Task, run: Path, system: str, options: argparse.Namespace, more: list[str]) -> str:
    """Train a run and return what it says about its training."""
    command = [sys.executable, "-m", "dragoman", "train", str(run), "--system", system, "--device", "cpu", *more]
    command += ["--source", f"{task.folder}/train.tsv", "--valid-source", f"{task.folder}/dev.tsv"]
    command += ["--minutes", f"{options.minutes:g}", "--seed", str(options.seed)]
    output = execute(command, options.threads)
    steps = re.findall(r"^best: step (\d[\d,]*\d|\d)", output, re.MULTILINE)
    return f"best step {steps[-1]}" if steps else ""


def decode_ours(task: Task, run: Path, options: argparse.Namespace) -> list[str]:
    sources = [[row[0], *row[2:3]] if task.has_features else row[:1] for row in task.columns(options.split)]
    command = [sys.executable, "-m", "dragoman", "translate", str(run), "--device", "cpu"]
    lines = "".join("\t".join(source) + "\n" for source in sources)
    return execute(command, options.threads, lines).splitlines()


# ---- yoyodyne

#: models of the examples in yoyodyne's repository; `encoder` and `decoder` add the type of their modules
PEER_MODELS: dict[str, dict[str, Any]] = {
    "hard attention, monotonic": {
        "class_path": "yoyodyne.models.HardAttentionLSTMModel",
        "cell": "LSTM",
        "embedding_size": 200,
        "hidden_size": 400,
        "dropout": 0.3,
        "init_args": {"enforce_monotonic": True},
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001}},
    },
    "soft attention": {
        "class_path": "yoyodyne.models.SoftAttentionGRUModel",
        "cell": "GRU",
        "embedding_size": 300,
        "hidden_size": 100,
        "dropout": 0.3,
        "init_args": {},
        "optimizer": {"class_path": "torch.optim.Adadelta", "init_args": {"lr": 1.0}},
    },
}


def peer_settings(task: Task, folder: Path, model: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a training with yoyodyne, as its command-line interface reads them."""
    hidden, dropout, width = model["hidden_size"], model["dropout"], model["embedding_size"]

    def encoder(size: int) -> dict[str, Any]:
        init_args = {"dropout": dropout, "embedding_size": width, "hidden_size": size}
        return {"class_path": f"yoyodyne.models.modules.{model['cell']}Encoder", "init_args": init_args}

    arguments = {"source_encoder": encoder(hidden), "decoder_hidden_size": hidden, "decoder_dropout": dropout}
    arguments |= {"embedding_size": width, "optimizer": model["optimizer"]} | model["init_args"]
    data = {"model_dir": str(folder), "train": f"{task.folder}/train.tsv", "val": f"{task.folder}/dev.tsv"}
    if task.has_features:
        arguments["features_encoder"] = encoder(hidden)
        data |= {"features_col": 3}
    else:
        data |= {"target_sep": " "}
    seconds = round(60 * options.minutes)
    trainer = {"accelerator": "cpu", "devices": 1, "gradient_clip_val": 3, "max_epochs": -1, "logger": False}
    trainer |= {"max_time": f"00:{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"}
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    return {
        "seed_everything": options.seed,
        "trainer": trainer,
        "model": {"class_path": model["class_path"], "init_args": arguments},
        "data": data,
        "checkpoint": {"dirpath": str(folder), "filename": "best-{epoch}", "mode": "max", "monitor": "val_accuracy"},
    }


def train_peer(task: Task, folder: Path, model: dict[str, Any], options: argparse.Namespace) -> str:
    """Train yoyodyne's model and return which epoch was the best."""
    folder.mkdir()
    (folder / "fit.yaml").write_text(json.dumps(peer_settings(task, folder, model, options)))
    execute([options.yoyodyne, "fit", "--config", f"{folder}/fit.yaml"], options.threads)
    [checkpoint] = folder.glob("best-*.ckpt")
    return f"best {checkpoint.stem.removeprefix('best-')}"


def decode_peer(task: Task, folder: Path, options: argparse.Namespace) -> list[str]:
    settings = json.loads((folder / "fit.yaml").read_text())
    settings["data"] |= {"predict": f"{task.folder}/{options.split}.tsv"}
    settings["prediction"] = {"path": f"{folder}/predictions.txt"}
    (folder / "predict.yaml").write_text(json.dumps(settings))
    [checkpoint] = folder.glob("best-*.ckpt")
    execute(
        [options.yoyodyne, "predict", "--config", f"{folder}/predict.yaml", "--ckpt_path", str(checkpoint)],
        options.threads,
    )
    return (folder / "predictions.txt").read_text("utf-8").splitlines()


# ---- both


def execute(command: list[str], threads: int, text: str = "") -> str:
    """Run a command with a number of threads, and return what it prints; what it says goes into the error."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(command, input=text, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout + (done.stderr if "train" in command else "")


def word_error_rate(outputs: list[str], task: Task, split: str) -> float:
    references = [row[1] for row in task.columns(split)]
    assert len(outputs) == len(references)
    return 100 * sum(output.strip() != target for output, target in zip(outputs, references)) / len(references)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yoyodyne", help="its command, in an environment of its own; default: Dragoman only")
    parser.add_argument("--g2p", type=Path, help="folder with low/ita_train.tsv.gz …")
    parser.add_argument("--languages", default="low/ita,medium/dut")
    parser.add_argument("--inflection", type=int, help="number of generated forms to train on")
    parser.add_argument("--systems", default="hard-monotonic,bahdanau,transformer")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="dev to choose, test to report")
    options, more = parser.parse_known_args()
    more = [argument for argument in more if argument != "--"]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        languages = options.languages.split(",") if options.g2p else []
        tasks = [g2p_task(options.g2p, name, root / name.replace("/", "-")) for name in languages]
        if options.inflection:
            tasks.append(inflection_task(options.inflection, root / "inflection"))
        print("| task | toolkit | model | training | seconds | CPU seconds | WER |\n|---|---|---|---|---|---|---|")
        for task in tasks:
            entries = [("Dragoman", system, train_ours, decode_ours) for system in options.systems.split(",")]
            if options.yoyodyne:
                entries += [("yoyodyne", name, train_peer, decode_peer) for name in PEER_MODELS]
            for number, (toolkit, name, train, decode) in enumerate(entries):
                run = root / f"{task.folder.name}-{number}"
                start, cpu_start = time.monotonic(), cpu_seconds()
                if train is train_ours:
                    training = train_ours(task, run, name, options, more)
                else:
                    training = train_peer(task, run, PEER_MODELS[name], options)
                elapsed, cpu = time.monotonic() - start, cpu_seconds() - cpu_start
                rate = word_error_rate(decode(task, run, options), task, options.split)
                row = (task.name, toolkit, name, training, f"{elapsed:.0f}", f"{cpu:.0f}", f"{rate:.1f}")
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
