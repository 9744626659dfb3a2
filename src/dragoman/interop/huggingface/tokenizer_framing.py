"""The special tokens around a text, language codes among them, as the tokenizer of a checkpoint adds them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import UserError
from dragoman.interop.huggingface.hf_config import CONFIG_JSON
from dragoman.models import meta_model
from dragoman.text.framing import Framing
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.language_codes import LanguageCodes, SourceCodePosition, TargetCodePosition

if TYPE_CHECKING:
    from dragoman.interop.huggingface.converted_checkpoint import ConvertedCheckpoint

Affixes = tuple[tuple[int, ...], tuple[int, ...]]  # token ids before and after a source
Settings = Mapping[str, Any]  # of tokenizer_config.json


@dataclass(frozen=True)
class LanguageScheme:
    """How a tokenizer class of transformers writes language codes, and where a model reads them."""

    token: str  # regular expression of the special tokens; its group is the code
    source_position: SourceCodePosition = "prefix"
    target_position: TargetCodePosition = "forced_bos"
    default_source: str | None = None  # if the configuration names no source language


#: by the beginning of the names of tokenizer or model classes
LANGUAGE_SCHEMES = {
    "MBart50": LanguageScheme("([a-z]{2,3}_[A-Z]{2})"),  # en_XX
    "MBart": LanguageScheme(
        "([a-z]{2,3}_[A-Z]{2})", source_position="suffix", target_position="bos", default_source="en_XX"
    ),
    "Nllb": LanguageScheme("([a-z]{3}_[A-Z][a-z]{3})"),  # eng_Latn
    "M2M100": LanguageScheme("__([a-z]{2,3})__"),  # __en__
}


def tokenizer_framing(folder: Path, checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer) -> Framing:
    """Return the special tokens around source and target (framing), those of the source as the tokenizer adds them.

    tokenizer.json describes them in its post-processor. Without it, they are those of the tokenizer class that
    transformers has for the model's family. Classes with language codes decide themselves where the codes stand, and
    ignore a post-processor.
    """
    if meta_model(checkpoint.spec).source_features is not None:  # vectors have no special tokens around them
        return checkpoint.framing
    settings = _read_object(folder / "tokenizer_config.json")
    # at the length limit, transformers generates the token forced_eos_token_id
    eos_forced = checkpoint.framing.eos == checkpoint.generation.get("forced_eos_token_id")
    framing = replace(checkpoint.framing, force_eos_at_limit=eos_forced)
    if tokenizer.language_codes:  # Marian with several target languages: >>deu<< before the source
        marian_ids = {token[2:-2]: token_id for token, token_id in tokenizer.language_codes.items()}  # deu → id
        codes = LanguageCodes(marian_ids, source_position="none", target_position="source_prefix")
        framing = replace(framing, languages=codes)
    class_names = (settings.get("tokenizer_class"), _read_object(folder / CONFIG_JSON).get("tokenizer_class"))
    scheme, language_ids = _find_languages([str(name) for name in (*class_names, checkpoint.architecture)], tokenizer)
    if scheme is not None:
        return _with_languages(framing, scheme, language_ids, settings)
    processor = _read_object(folder / "tokenizer.json").get("post_processor")
    try:
        if isinstance(processor, dict):
            prefix, suffix = _processor_affixes(processor)
        else:
            prefix, suffix = _family_affixes(checkpoint, tokenizer, settings)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise UserError(
            f"{folder / 'tokenizer.json'} is damaged: its post_processor cannot be read; get the file again"
        ) from None
    if prefix and suffix and not meta_model(checkpoint.spec).can_generate:  # an encoder, with CLS and SEP
        # most config.json of encoders have neither bos_token_id nor eos_token_id
        framing = replace(framing, bos=prefix[0], eos=suffix[-1])
    return replace(framing, source_prefix=prefix, source_suffix=suffix)


# ---- language codes


def _find_languages(
    class_names: list[str], tokenizer: ImportedTokenizer
) -> tuple[LanguageScheme | None, dict[str, int]]:
    """Return how a tokenizer writes language codes, and the token id of each code; None and {} if it has none.

    `class_names` are those of tokenizer and model in transformers, the most reliable first. The first scheme of theirs
    that matches special tokens of the `tokenizer` is returned. A model of M2M-100's class may have the codes of NLLB.
    """
    # `schemes` is sorted like the class names, of which the last one is that of the model
    schemes = [scheme for name in class_names for prefix, scheme in LANGUAGE_SCHEMES.items() if name.startswith(prefix)]
    if schemes and schemes[-1] is LANGUAGE_SCHEMES["M2M100"]:
        schemes.append(LANGUAGE_SCHEMES["Nllb"])
    special_tokens = sorted(tokenizer.special_token_ids.items(), key=lambda name_and_id: name_and_id[1])  # by id
    for scheme in schemes:
        ids = {match[1]: token_id for name, token_id in special_tokens if (match := re.fullmatch(scheme.token, name))}
        if ids:
            return scheme, ids
    return None, {}


def _with_languages(framing: Framing, scheme: LanguageScheme, ids: dict[str, int], settings: Settings) -> Framing:
    """Return special tokens (framing) with places for language codes, instead of the fixed codes that it may have.

    Args:
        framing: the special tokens of the checkpoint.
        scheme: where the codes stand.
        ids: token ids by language code.
        settings: fields of tokenizer_config.json. The default languages are those of `src_lang` and `tgt_lang`, unless
            a forced BOS or, in mBART-25, the decoder start token is a code.
    """
    code_of = {token_id: code for code, token_id in ids.items()}
    source_position = scheme.source_position
    if settings.get("legacy_behaviour") is True:  # NLLB as published at first: a source is text, EOS, code
        source_position = "suffix"
    is_forced = any(token_id in code_of for token_id in framing.forced_bos)
    first_token = framing.forced_bos[0] if is_forced else framing.bos
    target = code_of.get(first_token, settings.get("tgt_lang"))
    source = settings.get("src_lang") or scheme.default_source
    default_source, default_target = (code if code in ids else None for code in (source, target))
    target_position = "forced_bos" if is_forced else scheme.target_position
    return replace(
        framing,
        # without a fixed code: the place of a code is filled when languages are chosen
        bos=framing.eos if framing.bos in code_of else framing.bos,
        forced_bos=tuple(token_id for token_id in framing.forced_bos if token_id not in code_of),
        source_prefix=(),
        source_suffix=(framing.eos,),
        languages=LanguageCodes(ids, source_position, target_position, default_source, default_target),
    )


# ---- other special tokens


def _processor_affixes(processor: Mapping[str, Any]) -> Affixes:
    """Return the token ids that a post-processor of the `tokenizers` library adds before and after a single text.

    An unknown kind of post-processor is a ValueError.
    """
    kind = processor["type"]
    if kind == "Sequence":
        affixes = [_processor_affixes(step) for step in processor["processors"]]
        prefix_ids = tuple(token_id for prefix, _ in affixes for token_id in prefix)
        return prefix_ids, tuple(token_id for _, suffix in affixes for token_id in suffix)
    if kind == "ByteLevel":  # adds no tokens
        return (), ()
    if kind in ("RobertaProcessing", "BertProcessing"):
        (_, cls), (_, sep) = processor["cls"], processor["sep"]  # name and id of each token
        return (int(cls),), (int(sep),)
    if kind != "TemplateProcessing":
        raise ValueError(kind)
    prefix: list[int] = []
    suffix: list[int] = []
    current = prefix  # the list that gets the next special tokens
    for item in processor["single"]:  # special tokens, the text itself (Sequence), special tokens
        if "Sequence" in item:
            current = suffix
        else:
            current += [int(token_id) for token_id in processor["special_tokens"][item["SpecialToken"]["id"]]["ids"]]
    return tuple(prefix), tuple(suffix)


def _family_affixes(checkpoint: ConvertedCheckpoint, tokenizer: ImportedTokenizer, settings: Settings) -> Affixes:
    """Return the token ids that the tokenizer class of the model's family adds before and after a text.

    Encoders add CLS and SEP. Others add BOS and EOS as the fields `add_bos_token` and `add_eos_token` of `settings`
    (tokenizer_config.json) say, by default the tokens of the checkpoint's framing.
    """
    framing, roles = checkpoint.framing, tokenizer.role_ids
    if not meta_model(checkpoint.spec).can_generate and {"cls", "sep"} <= roles.keys():
        return (roles["cls"],), (roles["sep"],)
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    prefix = (framing.bos,) if add_bos is True else () if add_bos is False else framing.source_prefix
    return prefix, (framing.eos,) if add_eos is True else framing.source_suffix


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} if the file does not exist or holds something else."""
    document = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
