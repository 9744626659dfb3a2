"""Open a transformers checkpoint as a run, or import it into a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import models, pre_tokenizers

from dragoman import checkpoint as checkpoints
from dragoman import config
from dragoman.errors import UserError
from dragoman.interop.huggingface.hf_checkpoint import ConvertedCheckpoint, read_checkpoint
from dragoman.interop.huggingface.hf_config import CONFIG_JSON, field_names
from dragoman.interop.huggingface.hf_framing import tokenizer_framing
from dragoman.parts.inference import InferencePrecision
from dragoman.run import Run, select_device, write_model_file, write_tokenizers
from dragoman.run.inference_weights import InferenceWeights
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, check_new_folder
from dragoman.search import LengthLimit
from dragoman.storage import atomic_folder, replace_symlink
from dragoman.text import Tokenizer
from dragoman.text.hf_tokenizers import MissingTokenizerError, tokenizers_from_folder
from dragoman.text.imported_tokenizer import IMPORTED_TYPE, ImportedTokenizer
from dragoman.training.checkpoint_manager import TrainState

#: generation settings that become settings of our search or part of the framing
SUPPORTED_GENERATION_SETTINGS = field_names(
    """
    num_beams length_penalty max_new_tokens max_length min_new_tokens min_length early_stopping no_repeat_ngram_size
    bad_words_ids suppress_tokens decoder_start_token_id pad_token_id bos_token_id eos_token_id forced_bos_token_id
    forced_eos_token_id
    """
)
#: values of other generation settings that change nothing
NEUTRAL_GENERATION_VALUES: dict[str, Any] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "renormalize_logits": False,
}


@dataclass(frozen=True)
class ImportResult:
    """An imported checkpoint."""

    checkpoint: ConvertedCheckpoint
    parameters: int
    vocab_sizes: tuple[int, int]  # of the source and target tokenizers
    unsupported_generation_settings: dict[str, Any]


class NoTokenizer:
    """Placeholder of a missing tokenizer: every use raises a UserError with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        raise UserError(self.reason)


def load_checkpoint(folder: Path, device: str | None = None, weights: InferencePrecision = "float32") -> Run:
    """Open a checkpoint as a run without importing it. Without a tokenizer it can only compute logits of token ids."""
    checkpoint = read_checkpoint(folder)
    try:
        checkpoint, source, target = _with_tokenizers(folder, checkpoint)
    except MissingTokenizerError as missing:
        source = target = cast(Tokenizer, NoTokenizer(str(missing)))
    model = checkpoint.spec.build()
    checkpoints.set_weights(model, checkpoint.weights, folder)
    torch_device = select_device(device or "auto")
    model.eval().to(torch_device)
    settings = _config(checkpoint, shared_vocabulary=source is target)
    inference_weights = InferenceWeights(weights, torch_device)
    return Run(folder, settings, model, source, target, checkpoint.framing, checkpoint.architecture, inference_weights)


def import_checkpoint(folder: Path, run_folder: Path, log: Callable[[str], None]) -> ImportResult:
    """Write a run folder with the model of a checkpoint; if it fails, no folder is left behind."""
    check_new_folder(run_folder)
    log(f"reading {folder}")
    checkpoint, source, target = _with_tokenizers(folder, read_checkpoint(folder))
    settings = _config(checkpoint, shared_vocabulary=source is target)
    log(f"writing {run_folder}")
    with atomic_folder(run_folder) as partial:
        (partial / CONFIG_FILE).write_text(config.to_yaml(settings), encoding="utf-8")
        write_model_file(partial, checkpoint.system, checkpoint.spec, checkpoint.framing)
        write_tokenizers(partial, source, target)
        (partial / CHECKPOINT_DIR).mkdir()
        values = {"validated": False, "progress": TrainState().to_dict(), "architecture": checkpoint.architecture}
        checkpoints.save(partial / CHECKPOINT_DIR / "000000", {"model": checkpoint.weights}, values)
        for link in ("best", "last"):
            replace_symlink(partial / CHECKPOINT_DIR / link, "000000")
    parameters = sum(weight.numel() for weight in checkpoint.weights.values())
    unsupported = _unsupported_generation_settings(checkpoint.generation)
    return ImportResult(checkpoint, parameters, (source.vocab_size, target.vocab_size), unsupported)


def _with_tokenizers(folder: Path, checkpoint: ConvertedCheckpoint) -> tuple[ConvertedCheckpoint, Tokenizer, Tokenizer]:
    """Read the source and target tokenizers, and add their special tokens to the framing of the checkpoint."""
    values = json.loads((folder / CONFIG_JSON).read_text(encoding="utf-8"))
    source, target = tokenizers_from_folder(folder, values)
    names = ("source_embedding.weight", "target_embedding.weight")
    embeddings = [len(checkpoint.weights[name]) for name in names if name in checkpoint.weights]
    for tokenizer, count in zip((source, target), (embeddings[0], embeddings[-1])):
        if tokenizer.vocab_size > count:
            raise UserError(
                f"the tokenizer in {folder} has {tokenizer.vocab_size:,} tokens, but the model has only {count:,} "
                "embeddings: they do not belong together"
            )
    checkpoint = replace(checkpoint, framing=tokenizer_framing(folder, checkpoint, source))
    return checkpoint, source, _label_tokenizer(checkpoint.labels) if checkpoint.labels else target


def _label_tokenizer(labels: tuple[str, ...]) -> Tokenizer:
    """Return a tokenizer whose tokens are the labels, with their ids in the checkpoint."""
    vocabulary = {label: number for number, label in enumerate(labels)}
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=labels[0]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return ImportedTokenizer(library, dict(enumerate(labels)), {}, {})


def _config(checkpoint: ConvertedCheckpoint, shared_vocabulary: bool) -> config.Config:
    """Translate generation settings: `max_length` and `min_length` of transformers count the BOS of the target."""
    generation = checkpoint.generation
    max_length, min_length = generation.get("max_new_tokens"), generation.get("min_new_tokens")
    if max_length is None and isinstance(generation.get("max_length"), int):
        max_length = generation["max_length"] - 1
    if min_length is None and isinstance(generation.get("min_length"), int):
        min_length = max(0, generation["min_length"] - 1)
    early_stopping = generation.get("early_stopping")
    search = {
        "beam_size": generation.get("num_beams", 1),
        "length_penalty": generation.get("length_penalty"),
        "max_target_length": max_length,
        "length_ratio": LengthLimit.ratio if max_length is None else 0.0,
        "length_offset": LengthLimit.offset if max_length is None else max_length,
        "min_length": min_length,
        "no_repeat_ngram_size": generation.get("no_repeat_ngram_size"),
        "early_stopping": early_stopping if early_stopping in (True, "never") else False,
        "rank_unfinished": "by_score",
    }
    values = {
        "text": {"tokenizer": IMPORTED_TYPE, "shared_vocabulary": shared_vocabulary},
        "system": {"name": checkpoint.system},
        "search": {name: value for name, value in search.items() if value is not None},
    }
    return config.from_dict(values, "the checkpoint's generation_config.json")


def _unsupported_generation_settings(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation settings without a counterpart here, and bad words of several tokens."""
    unsupported = {
        name: value
        for name, value in generation.items()
        if name not in SUPPORTED_GENERATION_SETTINGS
        and value != NEUTRAL_GENERATION_VALUES.get(name)
        and value not in (0, None, [])
    }
    bad_words = [word for word in generation.get("bad_words_ids") or [] if isinstance(word, list) and len(word) > 1]
    return unsupported | ({"bad_words_ids": bad_words} if bad_words else {})
