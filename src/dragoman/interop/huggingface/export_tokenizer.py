"""The tokenizer files of an export, which `AutoTokenizer` opens and which give the same ids as ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, normalizers, processors

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.run.sources import tag_ids
from dragoman.text import Tokenizer
from dragoman.text.hf_tokenizer_files import TARGET_TOKENIZER_FOLDER
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.normalization import TextNormalizer
from dragoman.text.special_tokens import SPECIAL_TOKENS

TOKENIZER_JSON, TOKENIZER_CONFIG_JSON = "tokenizer.json", "tokenizer_config.json"
#: fields of tokenizer_config.json for `SPECIAL_TOKENS`, in this order
ROLE_KEYS = ("pad_token", "unk_token", "bos_token", "eos_token", "mask_token", "sep_token", "cls_token")
INVISIBLE_CHARACTERS = "[\u200b\u2060\ufeff]"  # removed where white space is normalized
#: texts on which tokenizers of two libraries tend to differ
DIFFICULT_TEXTS = (
    *("", " ", "a", "Don't stop.  Two spaces", "\ttab and\nnewline ", "naïve café – “quotes” …", "ﬁne １２ Ⅻ"),
    *(
        "日本語とEnglish",
        "Ünï\u0308code e\u0301",
        "🙂👩‍👩‍👧",
        "</s> <pad> <unk> <mask>",
        "▁ underline_ x",
        "\u200b\u00a0x",
    ),
)


def write_tokenizer(run: Run, folder: Path, max_length: int) -> list[str]:
    """Write the tokenizer files, and return sentences for the user about them.

    Imported tokenizers are written as they came, with the tokens of languages that were added. If source and target
    have different tokenizers, that of the target goes into a subfolder. `max_length` is the number of tokens that the
    model reads at most.
    """
    source, target = run.source_tokenizer, run.target_tokenizer
    if isinstance(source, ImportedTokenizer):
        return _write_original_files(source, folder)
    if not source.is_library_tokenizer:
        return [
            "the export has no tokenizer files, because the run gives the tokens of an imported tokenizer other ids "
            "(text.tokenizer_from)"
        ]
    _write_learned_tokenizer(run, source, folder, max_length, is_source=True)
    notes = []
    if source.unknown_word_tokens:
        notes.append("the exported tokenizer gives <unk> for all unknown words, the run one of several tokens")
    if not run.model.can_generate or target is source:
        return notes
    (folder / TARGET_TOKENIZER_FOLDER).mkdir()
    _write_learned_tokenizer(run, target, folder / TARGET_TOKENIZER_FOLDER, max_length, is_source=False)
    notes.append(
        f"source and target have different vocabularies: the tokenizer of the folder is that of the source, the one in "
        f"{TARGET_TOKENIZER_FOLDER} decodes the output"
    )
    return notes


def _write_original_files(tokenizer: ImportedTokenizer, folder: Path) -> list[str]:
    """Write the files that a tokenizer was imported from, and return sentences for the user about them."""
    if not tokenizer.original_files.encoded:
        return [
            "the export has no tokenizer files: the checkpoint had no tokenizer.json to which tokens could be added "
            "(by --add-language), or was imported by an earlier version, which did not keep its files; use the "
            "tokenizer of the run"
        ]
    tokenizer.original_files.write(folder)
    return []


def _write_learned_tokenizer(run: Run, tokenizer: Tokenizer, folder: Path, max_length: int, is_source: bool) -> None:
    """Write tokenizer.json and tokenizer_config.json of a tokenizer that Dragoman has learned.

    `max_length` is the number of tokens that the model reads at most. The tokenizer of the source (`is_source`) adds
    the special tokens around a source, that of the target only EOS.
    """
    document = json.loads(tokenizer.to_json())
    document["model"].pop("dragoman")  # settings of ours, which the package tokenizers does not know
    backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    steps = _normalization_steps(TextNormalizer.from_settings(run.config.text))
    if steps:  # the run normalizes texts before its tokenizer does
        own_steps = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([*steps, *own_steps])
    framing = run.framing
    prefix, suffix = list(framing.source_prefix), list(framing.source_suffix)
    if is_source and tokenizer.tags:  # corpus tags: tokens before a source that name its corpus
        (tag_tokens,) = tag_ids(run, count=1, tag=None)  # of a text without a stated tag: the first corpus tag
        prefix += tag_tokens
    if run.model.is_decoder_only and not run.is_language_model:
        suffix.append(framing.bos)  # the separator, after which the target begins
    backend.post_processor = _post_processor(backend, prefix, suffix if is_source else [framing.eos])
    backend.save(str(folder / TOKENIZER_JSON))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # names of special tokens in a text are text
        "model_max_length": max_length,
        "padding_side": "left" if run.model.is_decoder_only else "right",  # generated tokens follow the prompt
        "model_input_names": ["input_ids", "attention_mask"],
        **dict(zip(ROLE_KEYS, SPECIAL_TOKENS)),
    }
    (folder / TOKENIZER_CONFIG_JSON).write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")


def _normalization_steps(normalizer: TextNormalizer) -> list[normalizers.Normalizer]:
    """Return a run's normalization of text (Unicode form, case, white space) as steps of the `tokenizers` library."""
    steps: list[normalizers.Normalizer] = []
    unicode_steps = [] if normalizer.unicode_form == "none" else [getattr(normalizers, normalizer.unicode_form)()]
    steps += unicode_steps
    if normalizer.lowercase:
        steps += [normalizers.Lowercase(), *unicode_steps]  # again, since lower-casing may undo the normal form
    if normalizer.whitespace:
        # white space as in Python's str.split, which also splits at some control characters
        steps += [
            normalizers.Replace(Regex(INVISIBLE_CHARACTERS), ""),
            normalizers.Replace(Regex(r"[\s\x1c-\x1f\x85]+"), " "),
            normalizers.Strip(),
        ]
    return steps


def _post_processor(backend: tokenizers.Tokenizer, prefix: list[int], suffix: list[int]) -> Any:
    """Return the post-processor that adds the special tokens with these ids around a text, or around each of two."""
    names = {token_id: backend.id_to_token(token_id) or "" for token_id in (*prefix, *suffix)}

    def template(prefix_ids: list[int], text: str, suffix_ids: list[int]) -> list[str]:
        """Return the parts of a template: names of special tokens around `text` ("$A" or "$B": the first or second)."""
        return [*(names[token_id] for token_id in prefix_ids), text, *(names[token_id] for token_id in suffix_ids)]

    single = template(prefix, "$A", suffix)
    pair = [*single, *template([], "$B", suffix)]
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, token_id) for token_id, name in names.items()]
    )


def check_tokenizer(run: Run, folder: Path, sources: list[str]) -> None:
    """Raise a UserError if `AutoTokenizer` gives other ids than the run for a source."""
    from transformers import AutoTokenizer

    if not (folder / TOKENIZER_CONFIG_JSON).exists() and not (folder / TOKENIZER_JSON).exists():
        return  # a checkpoint without tokenizer
    tokenizer, framing = AutoTokenizer.from_pretrained(folder), run.framing
    if (language := run.language_pair[0]) is not None:
        tokenizer.src_lang = language
    # names of special tokens in a text, as in DIFFICULT_TEXTS, are special tokens for the tokenizers of transformers,
    # but plain text for ours
    is_imported = isinstance(run.source_tokenizer, ImportedTokenizer)
    for text in sources if is_imported or run.is_dialogue else (*sources, *DIFFICULT_TEXTS):
        theirs = tokenizer(text).input_ids
        ours = [int(token_id) for token_id in run.encode_sources([text])[0]]
        if run.model.is_decoder_only and not run.is_language_model:
            ours.append(framing.bos)  # the separator, which the exported tokenizer adds to a source
        if theirs != ours and len(ours) < run.max_source_length:  # the run has truncated longer texts
            raise UserError(
                "the export was not kept, because the tokenizer of transformers gives other ids than the tokenizer of "
                f"the run for the text {text!r} ({theirs} instead of {ours}): please report this"
            )
