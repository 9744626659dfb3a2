"""A checkpoint of transformers as a run folder."""

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
from dragoman.interop.huggingface.hf_framing import framed
from dragoman.models import EncoderDecoder
from dragoman.parts.inference import InferencePrecision
from dragoman.run import (
    CHECKPOINT_DIR,
    CONFIG_FILE,
    Run,
    is_run_folder,
    select_device,
    write_model_file,
    write_tokenizers,
)
from dragoman.run.inference_weights import InferenceWeights
from dragoman.search import LengthLimit
from dragoman.storage import atomic_folder, replace_symlink
from dragoman.text import Tokenizer
from dragoman.text.hf_tokenizers import MissingTokenizerError, TokenizerComponents
from dragoman.text.imported_tokenizer import IMPORTED_TYPE, ImportedTokenizer, tokenizers_from_folder
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.resolve import check_new_folder

#: what of the library's settings for generation our search has as well
TAKEN = {
    "num_beams",
    "length_penalty",
    "max_new_tokens",
    "max_length",
    "min_new_tokens",
    "min_length",
    "early_stopping",
    "no_repeat_ngram_size",
}
#: what it has in the framing
FRAMED = {
    "bad_words_ids",
    "suppress_tokens",
    "decoder_start_token_id",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
}
#: what changes nothing: the library's own defaults
NEUTRAL: dict[str, Any] = {
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
    """What became of a checkpoint."""

    checkpoint: ConvertedCheckpoint
    parameters: int
    vocab_sizes: tuple[int, int]  # pieces of the source's and of the target's tokenizer
    unsupported_generation_settings: dict[str, Any]  # settings for generation that our search does not have


def is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").exists() and not is_run_folder(folder)


def load_checkpoint(folder: Path, device: str | None = None, weights: InferencePrecision = "float32") -> Run:
    """A checkpoint opened for use as it lies there; without files of a tokenizer it can only be asked for logits."""
    found = read_checkpoint(folder)
    try:
        found, source, target = _with_tokenizers(folder, found)
    except MissingTokenizerError as missing:
        source = target = cast(Tokenizer, NoTokenizer(str(missing)))
    model = found.spec.build()
    checkpoints.set_weights(model, found.weights, folder)
    model.eval().to(select_device(device or "auto"))
    settings = _config(found, joint=source is target)
    packing = InferenceWeights(weights, select_device(device or "auto"))
    return Run(folder, settings, model, source, target, found.framing, found.architecture, packing)


class NoTokenizer:
    """Stands where a checkpoint has no tokenizer, and says so whenever one is needed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        raise UserError(self.reason)


def import_checkpoint(folder: Path, run_folder: Path, log: Callable[[str], None]) -> ImportResult:
    """Make a run of a checkpoint; nothing is left behind if it fails."""
    check_new_folder(run_folder)
    log(f"reading {folder}")
    found, source, target = _with_tokenizers(folder, read_checkpoint(folder))
    log(f"writing {run_folder}")
    with atomic_folder(run_folder) as partial:
        (partial / CONFIG_FILE).write_text(config.to_yaml(_config(found, joint=source is target)), encoding="utf-8")
        write_model_file(partial, found.system, found.spec, found.framing)
        write_tokenizers(partial, source, target)
        place = partial / CHECKPOINT_DIR
        place.mkdir()
        values = {"validated": False, "progress": TrainState().to_dict(), "architecture": found.architecture}
        checkpoints.save(place / "000000", {"model": found.weights}, values)
        for link in ("best", "last"):
            replace_symlink(place / link, "000000")
    numbers = sum(weight.numel() for weight in found.weights.values())
    return ImportResult(found, numbers, (source.vocab_size, target.vocab_size), _left_out(found.search))


def _with_tokenizers(folder: Path, found: ConvertedCheckpoint) -> tuple[ConvertedCheckpoint, Tokenizer, Tokenizer]:
    """The checkpoint with the framing that its tokenizer wants, and the tokenizers of either side."""
    source, target = _tokenizers(folder, found)
    framing = framed(folder, found, source)
    closed = framing.eos == found.search.get("forced_eos_token_id")
    found = replace(found, framing=replace(framing, force_eos_at_limit=closed))
    return found, source, _labels(found.labels) if found.labels else target


def _tokenizers(folder: Path, found: ConvertedCheckpoint) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    source, target = tokenizers_from_folder(folder, values)
    spec = found.spec
    if isinstance(spec, EncoderDecoder):
        rows = (spec.source_vocab_size, spec.target_vocab_size)
    else:
        rows = (spec.vocab_size, spec.vocab_size)
    for tokenizer, most in zip((source, target), rows):
        if tokenizer.vocab_size > most:
            raise UserError(
                f"the tokenizer in {folder} numbers {tokenizer.vocab_size:,} pieces, but the model has embeddings for "
                f"{most:,} alone: they do not belong together"
            )
    return source, target


def _labels(names: tuple[str, ...]) -> Tokenizer:
    """A tokenizer whose pieces are the labels, with the numbers that they have in the checkpoint."""
    library = tokenizers.Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token=names[0]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return ImportedTokenizer(TokenizerComponents(library, dict(enumerate(names)), [], {}))


def _config(found: ConvertedCheckpoint, joint: bool) -> config.Config:
    """The library counts the symbol that starts a target in, has its own names, and one limit for all sources."""
    search = found.search
    longest, least = (search.get(name) for name in ("max_new_tokens", "min_new_tokens"))
    if longest is None and isinstance(search.get("max_length"), int):
        longest = search["max_length"] - 1
    if least is None and isinstance(search.get("min_length"), int):
        least = max(0, search["min_length"] - 1)
    wanted = {
        "beam_size": search.get("num_beams", 1),
        "length_penalty": search.get("length_penalty"),
        "max_target_length": longest,
        "length_ratio": LengthLimit.ratio if longest is None else 0.0,
        "length_offset": LengthLimit.offset if longest is None else longest,
        "min_length": least,
        "no_repeat_ngram_size": search.get("no_repeat_ngram_size"),
        "early_stopping": _early_stopping(search.get("early_stopping")),
        "rank_unfinished": "by_score",
    }
    known = {name: value for name, value in wanted.items() if value is not None}
    values = {
        "text": {"tokenizer": IMPORTED_TYPE, "shared_vocabulary": joint},
        "system": {"name": found.system},
        "search": known,
    }
    return config.from_dict(values, "the checkpoint's generation_config.json")


def _early_stopping(value: Any) -> Any:
    """True, False or "never"; False where the checkpoint says nothing, as in the library."""
    return value if isinstance(value, bool) or value == "never" else False


def _left_out(search: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for and is not done: the bad words of several tokens, and what our search does not have."""
    several = [word for word in search.get("bad_words_ids") or [] if isinstance(word, list) and len(word) > 1]
    others = {
        name: value
        for name, value in search.items()
        if name not in TAKEN and name not in FRAMED and value != NEUTRAL.get(name) and value not in (0, None, [])
    }
    return others | ({"bad_words_ids": several} if several else {})
