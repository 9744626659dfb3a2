"""Compare fine-tuning of an M2M-100-shaped model by Dragoman and by Seq2SeqTrainer of transformers: speed and memory.

Before it, both open the checkpoint and translate, and the time and memory of that are compared as well.

    python benchmarks/fine_tuning.py --source train.en --target train.de --size tiny --steps 30
    python benchmarks/fine_tuning.py --source train.en --target train.de --size 600M --device cuda

A randomly initialized checkpoint is written by transformers, with a tokenizer learned from the pairs and padded to the
vocabulary of the size. Every system fine-tunes it in a process of its own: Dragoman with all weights and with LoRA,
Seq2SeqTrainer with all weights and, if peft is installed, with LoRA. All have the same dropout, label smoothing,
precision, optimizer (AdamW) and learning rate, and about as many target tokens per step. The Trainer groups sentences
by length. Without the package accelerate, which the Trainer needs, a plain loop of the same steps takes its place.

Dragoman packs sentences without padding only if attention has no dropout (`--attention-dropout 0`, for all systems).

Target tokens per second are those after `--warmup` steps, without padding and validation. Memory is the peak of the
device. Opening counts from the first line after the imports to the first translated sentence; the memory of decoding
is that of 32 tokens for eight sentences by greedy search, next to the weights in the precision that is used.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
CODES = ("eng_Latn", "kin_Latn")
LORA_RANK, LORA_TARGETS = 16, ("q_proj", "k_proj", "v_proj", "out_proj")
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 32, "layers": 2, "heads": 4, "ffn_dim": 64, "vocab_size": 1000},
    "small": {"d_model": 512, "layers": 6, "heads": 8, "ffn_dim": 2048, "vocab_size": 32_000},
    "418M": {"d_model": 1024, "layers": 12, "heads": 16, "ffn_dim": 4096, "vocab_size": 128_112},
    "600M": {"d_model": 1024, "layers": 12, "heads": 16, "ffn_dim": 4096, "vocab_size": 256_206},  # NLLB-200, distilled
    "1.3B": {"d_model": 1024, "layers": 24, "heads": 16, "ffn_dim": 8192, "vocab_size": 256_206},
}


def read_lines(path: Path) -> list[str]:
    """Read the lines of a file, plain or gzipped."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read().splitlines()
    return path.read_text(encoding="utf-8").splitlines()


def write_checkpoint(folder: Path, arguments: argparse.Namespace, texts: list[str]) -> None:
    """Write a random checkpoint with a byte-level BPE tokenizer of the texts."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    size = SIZES[arguments.size]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=min(32_000, size["vocab_size"]) - len(CODES),
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.add_special_tokens(list(CODES))
    ids = {name: library.token_to_id(name) for name in (*special, *CODES)}
    library.post_processor = processors.TemplateProcessing(
        single=f"{CODES[0]} $A </s>", special_tokens=[(name, ids[name]) for name in (CODES[0], "</s>")]
    )
    roles = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, additional_special_tokens=list(CODES), **roles
    )
    fast.save_pretrained(folder)
    names = {"m2m_100": "M2M100", "mbart": "MBart"}
    family = names[arguments.family]
    config = getattr(transformers, f"{family}Config")(
        vocab_size=size["vocab_size"],
        d_model=size["d_model"],
        max_position_embeddings=1024,
        dropout=0.1,
        attention_dropout=arguments.attention_dropout,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<s>"],
        eos_token_id=ids["</s>"],
        decoder_start_token_id=ids["</s>"],
        **{f"{side}_layers": size["layers"] for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": size["heads"] for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": size["ffn_dim"] for side in ("encoder", "decoder")},
        **{f"{side}_layerdrop": 0.0 for side in ("encoder", "decoder")},
    )
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    model.save_pretrained(folder)


# ---- opening and translating, each in a process of its own


NUM_SENTENCES, NUM_TOKENS = 8, 32  # translated to measure memory, and the longest translation


def open_ours(request: dict[str, Any]) -> dict[str, Any]:
    """Open the checkpoint with Dragoman and translate."""
    import torch

    import dragoman

    start = time.monotonic()
    weights = "bfloat16" if request["device"] == "cuda" else "float32"
    run = dragoman.load(request["checkpoint"], device=request["device"], weights=weights)
    run = run.with_languages(source=CODES[0], target=CODES[1])
    opened = time.monotonic()
    sentences = read_lines(Path(request["source"]))[:NUM_SENTENCES]
    search = dragoman.Beam(size=1, length_limit=dragoman.LengthLimit(max=NUM_TOKENS))
    run.translate(sentences[:1], search=search, alignment=False)
    translated = time.monotonic()
    run.translate(sentences, search=search, alignment=False)
    return _decoding_record(start, opened, translated, run.inference_models[0], torch.device(request["device"]))


def open_theirs(request: dict[str, Any]) -> dict[str, Any]:
    """Open the checkpoint with transformers, in bfloat16 on a GPU, and translate."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    device = torch.device(request["device"])
    start = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["checkpoint"])
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(request["checkpoint"], dtype=dtype).to(device).eval()
    opened = time.monotonic()
    sentences = read_lines(Path(request["source"]))[:NUM_SENTENCES]
    target_code = tokenizer.convert_tokens_to_ids(CODES[1])
    settings = {"num_beams": 1, "max_new_tokens": NUM_TOKENS, "forced_bos_token_id": target_code}
    times = []
    for count in (1, NUM_SENTENCES):
        inputs = tokenizer(sentences[:count], return_tensors="pt", padding=True).to(device)
        inputs.pop("token_type_ids", None)
        tokenizer.batch_decode(model.generate(**inputs, **settings))
        times.append(time.monotonic())
    return _decoding_record(start, opened, times[0], model, device)


def _decoding_record(start: float, opened: float, translated: float, model: Any, device: Any) -> dict[str, Any]:
    """Return the seconds to open and to translate the first sentence, peak memory, and bytes of distinct weights."""
    from device_info import peak_memory_bytes

    size = sum({weight.data_ptr(): weight.numel() * weight.element_size() for weight in model.parameters()}.values())
    seconds = {"open": opened - start, "first_translation": translated - opened}
    return seconds | {"memory": peak_memory_bytes(device), "weights": size}


OPENING = {"Dragoman opens and translates": open_ours, "transformers opens and translates": open_theirs}


# ---- fine-tuning, each in a process of its own


def fine_tune_ours(request: dict[str, Any], lora: bool) -> dict[str, Any]:
    """Fine-tune with Dragoman; the speed is that of its own log, which leaves out validation."""
    import torch

    import dragoman
    from device_info import peak_memory_bytes

    speeds: list[float] = []
    memory = 0

    def listen(event: Any) -> None:
        """Collect the speed of every ten steps after the warm-up, and the peak memory of training."""
        nonlocal memory
        if isinstance(event, dragoman.StepEvent):
            memory = peak_memory_bytes(torch.device(request["device"]))
            if event.step > request["warmup"]:
                speeds.append(event.tokens_per_second)

    settings: dict[str, Any] = {
        "training.start_from": request["checkpoint"],
        "training.steps": request["steps"],
        "training.batch_tokens": request["batch_tokens"],
        "training.learning_rate": request["learning_rate"],
        "training.label_smoothing": 0.1,
        "training.optimizer": "adamw",
        "training.recipe": "plain",
        "training.device": request["device"],
        "training.gradient_checkpointing": request["gradient_checkpointing"],
        "training.validation_interval": 10**6,
        "training.validation_sentences": 0,
        "training.average_checkpoints": False,
        "data.validation_size": 20,
        "data.max_length": 200,
        "lora.rank": LORA_RANK if lora else 0,
    }
    if request["multilingual"]:
        settings |= {"data.source_language": CODES[0], "data.target_language": CODES[1]}
    folder = Path(request["work"]) / ("ours-lora" if lora else "ours")
    start = time.monotonic()
    dragoman.train(folder, source=request["source"], target=request["target"], settings=settings, callback=listen)
    seconds = time.monotonic() - start
    return {"speeds": speeds, "memory": memory, "seconds": seconds}


def fine_tune_theirs(request: dict[str, Any], lora: bool) -> dict[str, Any]:
    """Fine-tune with Seq2SeqTrainer, or with the loop that it would run if accelerate is missing."""
    import torch
    import transformers

    from device_info import peak_memory_bytes

    transformers.utils.logging.disable_progress_bar()
    device = torch.device(request["device"])
    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["checkpoint"])
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(request["checkpoint"], dtype=torch.float32)
    if lora:
        import peft

        settings = peft.LoraConfig(
            r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=list(LORA_TARGETS), task_type="SEQ_2_SEQ_LM"
        )
        model = peft.get_peft_model(model, settings)
    target_code, eos = tokenizer.convert_tokens_to_ids(CODES[1]), tokenizer.eos_token_id
    rows = []
    for source, target in zip(read_lines(Path(request["source"])), read_lines(Path(request["target"]))):
        labels = [target_code, *tokenizer(target, add_special_tokens=False).input_ids, eos]
        row = {"input_ids": tokenizer(source).input_ids, "labels": labels}
        if max(len(ids) for ids in row.values()) <= 202:
            rows.append(row)
    mean = sum(max(len(row["input_ids"]), len(row["labels"])) for row in rows) / len(rows)
    batch_size = max(1, round(request["batch_tokens"] / mean))
    pad = transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)

    def collator(features: Any) -> Any:
        """Pad a batch, and shift the labels for the decoder, whose loss is computed outside the model."""
        batch = pad(features)
        shifted = batch["labels"].roll(1, 1).masked_fill(batch["labels"].roll(1, 1) == -100, tokenizer.pad_token_id)
        shifted[:, 0] = eos  # the decoder starts with EOS
        return {**batch, "decoder_input_ids": shifted}

    run = _run_trainer if importlib.util.find_spec("accelerate") else _run_plain_loop
    start = time.monotonic()
    speeds = run(model, rows, collator, batch_size, request, device)
    seconds = time.monotonic() - start
    return {
        "speeds": speeds,
        "memory": peak_memory_bytes(device),
        "seconds": seconds,
        "loop": run.__name__.removeprefix("_run_").replace("_", " "),
    }


class SpeedMeter:
    """Measures target tokens per second in intervals of ten steps after the warm-up."""

    def __init__(self, warmup: int, device: Any) -> None:
        """Start before the first step."""
        self.warmup, self.device, self.speeds = warmup, device, list[float]()
        self.step = self.tokens = 0
        self.start = time.monotonic()

    def count(self, labels: Any) -> None:
        """Count the labels of a batch, without padding."""
        self.tokens += int((labels != -100).sum())

    def end_step(self) -> None:
        """End a step; every ten steps, wait for the device and note the speed."""
        import torch

        self.step += 1
        if self.step % 10:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.monotonic()
        if self.step > self.warmup:
            self.speeds.append(self.tokens / (now - self.start))
        self.start, self.tokens = now, 0


def _run_trainer(model: Any, rows: Any, collator: Any, batch_size: int, request: dict[str, Any], device: Any) -> Any:
    """Train with Seq2SeqTrainer and return the speeds."""
    import transformers

    meter = SpeedMeter(request["warmup"], device)

    class Callback(transformers.TrainerCallback):
        """Tells the meter when a step has ended."""

        def on_step_end(self, *positional: Any, **named: Any) -> None:
            """Count a step."""
            meter.end_step()

    def collate(features: Any) -> Any:
        """Make a batch and count its labels."""
        batch = collator(features)
        meter.count(batch["labels"])
        return batch

    options: dict[str, Any] = {
        "output_dir": str(Path(request["work"]) / "theirs"),
        "max_steps": request["steps"],
        "per_device_train_batch_size": batch_size,
        "learning_rate": request["learning_rate"],
        "label_smoothing_factor": 0.1,
        "bf16": device.type == "cuda",
        "use_cpu": device.type == "cpu",
        "gradient_checkpointing": request["gradient_checkpointing"],
        "optim": "adamw_torch_fused",
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 10**6,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
    }
    known = {field.name for field in __import__("dataclasses").fields(transformers.Seq2SeqTrainingArguments)}
    grouped = {"group_by_length": True} if "group_by_length" in known else {}
    grouped = {"train_sampling_strategy": "group_by_length"} if "train_sampling_strategy" in known else grouped
    training = transformers.Seq2SeqTrainingArguments(**options, **grouped)
    trainer = transformers.Seq2SeqTrainer(
        model=model, args=training, train_dataset=rows, data_collator=collate, callbacks=[Callback()]
    )
    trainer.train()
    return meter.speeds


def _run_plain_loop(model: Any, rows: Any, collator: Any, batch_size: int, request: dict[str, Any], device: Any) -> Any:
    """Train with the steps of the Trainer: grouped batches, autocast, label smoothing, clipping, fused AdamW."""
    import random

    import torch

    model.to(device).train()
    if request["gradient_checkpointing"]:
        model.gradient_checkpointing_enable()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=request["learning_rate"], fused=True)
    meter, generator, batches = SpeedMeter(request["warmup"], device), random.Random(1), []
    for _ in range(request["steps"]):
        if not batches:  # as group_by_length: megabatches of fifty batches, sorted by length
            order = generator.sample(range(len(rows)), len(rows))
            for start in range(0, len(order), 50 * batch_size):
                group = sorted(order[start : start + 50 * batch_size], key=lambda row: -len(rows[row]["input_ids"]))
                batches += [group[first : first + batch_size] for first in range(0, len(group), batch_size)]
        batch = collator([rows[row] for row in batches.pop(0)])
        meter.count(batch["labels"])
        inputs = {name: tensor.to(device) for name, tensor in batch.items()}
        labels = inputs.pop("labels")
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.1
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter.end_step()
    return meter.speeds


SYSTEMS = {
    "Dragoman, all weights": lambda request: fine_tune_ours(request, lora=False),
    f"Dragoman, LoRA of rank {LORA_RANK}": lambda request: fine_tune_ours(request, lora=True),
    "Seq2SeqTrainer, all weights": lambda request: fine_tune_theirs(request, lora=False),
    f"Seq2SeqTrainer, LoRA of rank {LORA_RANK}": lambda request: fine_tune_theirs(request, lora=True),
}


def run_in_process(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run a system in a process of its own, and return its measurements."""
    paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", name, json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Write the checkpoint, run all systems, and print speed and memory."""
    if sys.argv[1:2] == ["--worker"]:
        name, request = sys.argv[2], json.loads(sys.argv[3])
        print(json.dumps((OPENING | SYSTEMS)[name](request)))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--family", choices=("m2m_100", "mbart"), default="m2m_100")
    parser.add_argument("--pairs", type=int, default=3000, help="pairs to train on")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=50, help="steps that are not measured")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--attention-dropout", type=float, default=0.1)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--work", type=Path, default=Path("runs/fine_tuning"))
    groups = ("opening", "ours", "lora", "theirs")
    parser.add_argument("--only", nargs="+", choices=groups, default=groups)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True)
    files = {}
    texts: list[str] = []
    for side in ("source", "target"):
        lines = read_lines(getattr(arguments, side))[: arguments.pairs]
        files[side] = arguments.work.resolve() / f"train.{side}"
        files[side].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        texts += lines
    checkpoint = arguments.work.resolve() / "checkpoint"
    write_checkpoint(checkpoint, arguments, texts)
    request = {name: str(path) for name, path in files.items()} | {
        "checkpoint": str(checkpoint),
        "work": str(arguments.work.resolve()),
        "multilingual": True,
        **{name: getattr(arguments, name) for name in ("steps", "warmup", "batch_tokens", "learning_rate")},
        **{name: getattr(arguments, name) for name in ("gradient_checkpointing", "device")},
    }
    print(f"{arguments.family} {arguments.size} on {arguments.device}, {arguments.batch_tokens:,} tokens per step")
    for name in OPENING if "opening" in arguments.only else ():
        result = run_in_process(name, request)
        seconds = f"{result['open']:5.1f} s to open, {result['first_translation']:5.1f} s for the first translation"
        memory = f"{result['memory'] / 2**30:6.2f} GiB, {result['memory'] / result['weights']:5.2f} × the weights"
        print(f"{name:35} {seconds}, {memory}", flush=True)
    names = list(SYSTEMS)
    chosen = {"opening": [], "ours": names[:1], "lora": names[1:2], "theirs": names[2:]}
    results = {}
    for name in (name for group in arguments.only for name in chosen[group]):
        if name == names[3] and not importlib.util.find_spec("peft"):
            continue
        results[name] = run_in_process(name, request)
        print(f"{name}: {median(results[name]['speeds']):,.0f} tokens/s", flush=True)
    reference = results.get(names[2])
    for name, result in results.items():
        speed, memory = median(result["speeds"]), result["memory"] / 2**30
        ratio = f"  {speed / median(reference['speeds']):5.2f} ×" if reference else ""
        loop = f"  ({result['loop']})" if "loop" in result else ""
        print(f"{name:35} {speed:10,.0f} tokens/s{ratio}  {memory:6.2f} GiB  {result['seconds']:6.1f} s{loop}")


if __name__ == "__main__":
    main()
