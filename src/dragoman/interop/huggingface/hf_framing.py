"""The special tokens around a text, as a checkpoint's tokenizer adds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.interop.huggingface.hf_checkpoint import ConvertedCheckpoint
from dragoman.models import meta_model
from dragoman.text.framing import Framing
from dragoman.text.imported_tokenizer import ImportedTokenizer

Affixes = tuple[tuple[int, ...], tuple[int, ...]]  # token ids before and after a source


def tokenizer_framing(folder: Path, checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer) -> Framing:
    """Return the checkpoint's framing with the special tokens that its tokenizer adds to a source.

    tokenizer.json describes them in its post-processor. Without it, they are those of the family's tokenizer class.
    """
    settings = _read_object(folder / "tokenizer_config.json")
    processor = _read_object(folder / "tokenizer.json").get("post_processor")
    try:
        if isinstance(processor, dict):
            prefix, suffix = _processor_affixes(processor)
        else:
            prefix, suffix = _family_affixes(checkpoint, tokenizer, settings)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise UserError(f"{folder / 'tokenizer.json'} is damaged: its post_processor is not supported") from None
    framing = _with_target_language(checkpoint, tokenizer, settings)
    eos_forced = framing.eos == checkpoint.generation.get("forced_eos_token_id")
    return replace(framing, source_prefix=prefix, source_suffix=suffix, force_eos_at_limit=eos_forced)


def _processor_affixes(processor: Mapping[str, Any]) -> Affixes:
    """Return what a post-processor of the `tokenizers` library adds before and after a single text."""
    kind = processor["type"]
    if kind == "Sequence":
        affixes = [_processor_affixes(step) for step in processor["processors"]]
        return tuple(id_ for prefix, _ in affixes for id_ in prefix), tuple(
            id_ for _, suffix in affixes for id_ in suffix
        )
    if kind == "ByteLevel":
        return (), ()
    if kind in ("RobertaProcessing", "BertProcessing"):
        return (int(processor["cls"][1]),), (int(processor["sep"][1]),)
    if kind != "TemplateProcessing":
        raise ValueError(kind)
    prefix: list[int] = []
    suffix: list[int] = []
    side = prefix
    for item in processor["single"]:
        if "Sequence" in item:
            side = suffix
        else:
            side += [int(id_) for id_ in processor["special_tokens"][item["SpecialToken"]["id"]]["ids"]]
    return tuple(prefix), tuple(suffix)


def _family_affixes(
    checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer, settings: Mapping[str, Any]
) -> Affixes:
    """Return what the family's tokenizer class adds."""
    framing, roles = checkpoint.framing, tokenizer.role_ids
    if not meta_model(checkpoint.spec).can_generate and {"cls", "sep"} <= roles.keys():
        return (roles["cls"],), (roles["sep"],)
    if checkpoint.architecture.startswith("MBart"):
        language = tokenizer.special_token_ids.get(settings.get("src_lang") or "en_XX")
        code = () if language is None else (language,)
        if _is_mbart50(settings):
            return code, framing.source_suffix
        return framing.source_prefix, (*framing.source_suffix, *code)
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    prefix = (framing.bos,) if add_bos is True else () if add_bos is False else framing.source_prefix
    return prefix, (framing.eos,) if add_eos is True else framing.source_suffix


def _with_target_language(
    checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer, settings: Mapping[str, Any]
) -> Framing:
    """Put the language code of an mBART target into the framing: as BOS, or in mBART-50 forced after it."""
    framing = checkpoint.framing
    language = tokenizer.special_token_ids.get(settings.get("tgt_lang") or "")
    if not checkpoint.architecture.startswith("MBart") or language is None or framing.forced_bos:
        return framing
    if _is_mbart50(settings):
        return replace(framing, forced_bos=(language,))
    return framing if "decoder_start_token_id" in checkpoint.generation else replace(framing, bos=language)


def _is_mbart50(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("tokenizer_class")).startswith("MBart50")


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} if the file does not exist. Reading the tokenizer has validated it before."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
