"""The symbols around a text, which the files of a checkpoint's tokenizer know better than its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.errors import UserError
from dragoman.interop.huggingface.hf_checkpoint import ConvertedCheckpoint
from dragoman.models import EncoderOnly
from dragoman.text.framing import Framing
from dragoman.text.imported_tokenizer import ImportedTokenizer

Around = tuple[tuple[int, ...], tuple[int, ...]]


def framed(folder: Path, checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer) -> Framing:
    """The checkpoint's framing with what its tokenizer puts before and after a source.

    tokenizer.json says it where it is there; else it is as every tokenizer of the family does it.
    """
    settings = _document(folder / "tokenizer_config.json")
    template = _document(folder / "tokenizer.json").get("post_processor")
    framing = checkpoint.framing
    try:
        around = _around(template) if isinstance(template, dict) else _customary(checkpoint, tokenizer, settings)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise UserError(f"{folder / 'tokenizer.json'} is damaged: its post_processor is not understood") from None
    return replace(_into(checkpoint, framing, tokenizer, settings), source_prefix=around[0], source_suffix=around[1])


def _around(processor: Mapping[str, Any]) -> Around:
    """What a post-processor of the `tokenizers` library puts before and after a text that stands alone."""
    kind = processor["type"]
    if kind == "Sequence":
        found = [_around(one) for one in processor["processors"]]
        return tuple(t for before, _ in found for t in before), tuple(t for _, after in found for t in after)
    if kind == "ByteLevel":
        return (), ()
    if kind in ("RobertaProcessing", "BertProcessing"):
        return (int(processor["cls"][1]),), (int(processor["sep"][1]),)
    if kind != "TemplateProcessing":
        raise ValueError(kind)
    sides: tuple[list[int], list[int]] = ([], [])
    side = 0
    for piece in processor["single"]:
        if "Sequence" in piece:
            side = 1
        else:
            sides[side].extend(int(n) for n in processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    return tuple(sides[0]), tuple(sides[1])


def _customary(checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer, settings: Mapping[str, Any]) -> Around:
    """As the family does it, where only the vocabulary was kept."""
    framing, roles = checkpoint.framing, tokenizer.role_ids
    if isinstance(checkpoint.spec, EncoderOnly) and {"cls", "sep"} <= roles.keys():
        return (roles["cls"],), (roles["sep"],)
    if checkpoint.architecture.startswith("MBart"):
        language = tokenizer.special_token_ids.get(settings.get("src_lang") or "en_XX")
        code = () if language is None else (language,)
        return (
            (code, framing.source_suffix)
            if _is_fifty(settings)
            else (framing.source_prefix, (*framing.source_suffix, *code))
        )
    before = () if settings.get("add_bos_token") is False else framing.source_prefix
    if settings.get("add_bos_token") is True:
        before = (framing.bos,)
    return before, (framing.eos,) if settings.get("add_eos_token") is True else framing.source_suffix


def _into(
    checkpoint: ConvertedCheckpoint, framing: Framing, tokenizer: ImportedTokenizer, settings: Mapping[str, Any]
) -> Framing:
    """mBART is told by a symbol into which language it is to translate: at the start, or forced after it."""
    language = tokenizer.special_token_ids.get(settings.get("tgt_lang") or "")
    if not checkpoint.architecture.startswith("MBart") or language is None or framing.forced_bos:
        return framing
    if _is_fifty(settings):
        return replace(framing, forced_bos=(language,))
    return framing if "decoder_start_token_id" in checkpoint.search else replace(framing, bos=language)


def _is_fifty(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("tokenizer_class")).startswith("MBart50")


def _document(path: Path) -> dict[str, Any]:
    """A file that the tokenizer was read from already, so that it is whole; nothing where it is not there."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
