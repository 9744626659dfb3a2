"""Memory and time to open a checkpoint of another library, next to transformers.

    PYTHONPATH=src python benchmarks/opening_checkpoints.py --dim 1024 --layers 12 --vocabulary 64000 --dtype float32

Writes a random Marian-shaped checkpoint, and measures in a new process each: opening it here and with transformers, one
translated sentence, importing it into a run folder, and opening the run folder, which also verifies its digest. Memory
is the peak resident memory of the process above that after importing the libraries; pages of a mapped file count,
although the system can drop them. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import dragoman
from device_info import device_name
from dragoman.evaluation import format_table
from dragoman.interop.huggingface import import_checkpoint

CPU = torch.device("cpu")
SENTENCE = "w5 w6 w7 w8"


def write_checkpoint(folder: Path, dim: int, layers: int, vocabulary: int, dtype: torch.dtype) -> int:
    """Write a checkpoint with random weights and a word tokenizer; return the size of its weights in bytes."""
    folder.mkdir()
    ffn = 4 * dim
    shapes: dict[str, tuple[int, ...]] = {"model.shared.weight": (vocabulary, dim)}
    for side, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        for layer in range(layers):
            prefix = f"model.{side}.layers.{layer}"
            matrices = {f"{name}.{part}_proj": (dim, dim) for name in attentions for part in ("q", "k", "v", "out")}
            matrices |= {"fc1": (ffn, dim), "fc2": (dim, ffn)}
            shapes |= {f"{prefix}.{name}.weight": shape for name, shape in matrices.items()}
            shapes |= {f"{prefix}.{name}.bias": shape[:1] for name, shape in matrices.items()}
            norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
            shapes |= {f"{prefix}.{norm}.{kind}": (dim,) for norm in norms for kind in ("weight", "bias")}
    weights = {name: torch.empty(shape, dtype=dtype).normal_(0, 0.02) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["MarianMTModel"], "model_type": "marian", "d_model": dim, "vocab_size": vocabulary}
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": layers, f"{side}_attention_heads": dim // 64, f"{side}_ffn_dim": ffn}
    config |= {"activation_function": "relu", "pad_token_id": 1, "decoder_start_token_id": 1, "eos_token_id": 0}
    config |= {"forced_eos_token_id": 0, "max_length": 20, "dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = {word: number for number, word in enumerate(["</s>", "<pad>", "<unk>"])}
    words |= {f"w{number}": number for number in range(3, vocabulary)}
    eos = {"id": "</s>", "ids": [0], "tokens": ["</s>"]}
    template = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    processor = {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": {"</s>": eos}}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": processor}
    tokenizer |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None}
    tokenizer |= {"model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return (folder / "model.safetensors").stat().st_size


# ---- what is measured, each in a process of its own


def open_folder(folder: Path) -> None:
    """Open a checkpoint or a run."""
    dragoman.load(folder, device="cpu")


def translate(folder: Path) -> None:
    """Open a checkpoint or a run, and translate a sentence."""
    dragoman.load(folder, device="cpu").translate([SENTENCE])


def translate_int8(folder: Path) -> None:
    """The same with weights quantized to int8."""
    dragoman.load(folder, device="cpu", weights="int8").translate([SENTENCE])


def import_folder(folder: Path) -> None:
    """Write a run folder."""
    import_checkpoint(folder, folder.with_name("run"), lambda message: None)


def open_with_transformers(folder: Path) -> None:
    """Open the checkpoint with transformers, which keeps the stored precision."""
    import transformers

    transformers.MarianMTModel.from_pretrained(folder)


def open_in_float32(folder: Path) -> None:
    """Open the checkpoint with transformers in float32, in which we compute."""
    import transformers

    transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32)


def translate_with_transformers(folder: Path) -> None:
    """Open the checkpoint with transformers in float32, and translate a sentence."""
    import transformers

    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32)
    model.generate(torch.tensor([[5, 6, 7, 8, 0]]), max_length=20)


MEASUREMENTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "open the checkpoint": (open_folder, "checkpoint"),
    "open it and translate a sentence": (translate, "checkpoint"),
    "open it and translate in int8": (translate_int8, "checkpoint"),
    "import it": (import_folder, "checkpoint"),
    "open the run folder": (open_folder, "run"),
    "transformers: open": (open_with_transformers, "checkpoint"),
    "transformers: open in float32": (open_in_float32, "checkpoint"),
    "transformers: open in float32 and translate": (translate_with_transformers, "checkpoint"),
}


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes; getrusage would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def measure(function: Callable[[Path], None], folder: Path) -> dict[str, Any]:
    """Call a function in a new process; return its peak memory and time, without those of importing libraries."""
    command = [sys.executable, __file__, "--measure", function.__name__, str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_measurement(function: Callable[[Path], None], folder: Path) -> None:
    """Print the peak memory and time of a function as JSON."""
    if "transformers" in function.__name__ or function is open_in_float32:
        import transformers  # noqa: F401  (its import is not measured)

    base, start = peak_memory(), time.perf_counter()
    function(folder)
    print(json.dumps({"bytes": peak_memory() - base, "seconds": time.perf_counter() - start}))


def main() -> None:
    """Write the checkpoint, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6, help="of encoder and decoder each")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--measure", nargs=2, metavar=("FUNCTION", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        run_measurement(globals()[options.measure[0]], Path(options.measure[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkpoint"
        dtype = getattr(torch, options.dtype)
        size = write_checkpoint(folder, options.dim, options.layers, options.vocabulary, dtype)
        print(f"{device_name(CPU)}; checkpoint in {options.dtype}: {size / 1e6:,.0f} MB")
        rows: list[dict[str, Any]] = []
        for name, (function, place) in MEASUREMENTS.items():
            result = measure(function, folder.with_name(place))
            row = {"peak memory, MB": round(result["bytes"] / 1e6), "/ file": round(result["bytes"] / size, 2)}
            rows.append({"": name} | row | {"seconds": round(result["seconds"], 1)})
        print(format_table(rows))


if __name__ == "__main__":
    main()
