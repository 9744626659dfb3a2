"""What the tokenizer files of each model family leave out: special tokens, hidden tokens, segmentation rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.errors import UserError
from dragoman.text.hf_tokenizer_files import TokenConfig, TokenizerFiles


@dataclass(frozen=True)
class TokenizerFamily:
    """The tokenizer of a model family, as far as its files do not describe it."""

    #: special tokens by role, such as "pad" or "eos", for roles that no file defines
    tokens: dict[str, TokenConfig] = field(default_factory=dict)
    #: regular expression of added tokens that are special, so that decoded text leaves them out, although the files do
    #: not declare them as such
    hidden_tokens: str | None = None
    #: regular expression that splits text before byte-level BPE; None for that of GPT-2
    split_pattern: str | None = None
    is_nfc: bool = False  # whether byte-level BPE reads text in Unicode's normal form C


# Names of the special tokens of families whose files do not define them.
PLAIN_TOKENS = {"pad": TokenConfig("<pad>"), "unk": TokenConfig("<unk>"), "eos": TokenConfig("</s>")}
UNK_BOS_EOS = {"unk": TokenConfig("<unk>"), "bos": TokenConfig("<s>"), "eos": TokenConfig("</s>")}
FAIRSEQ_TOKENS = PLAIN_TOKENS | {
    **{role: TokenConfig(content) for role, content in (("bos", "<s>"), ("cls", "<s>"), ("sep", "</s>"))},
    "mask": TokenConfig("<mask>", lstrip=True),
}
M2M100_TOKENS = PLAIN_TOKENS | {"bos": TokenConfig("<s>"), "sep": TokenConfig("</s>")}
PEGASUS_TOKENS = PLAIN_TOKENS | {"mask": TokenConfig("<mask_2>")}
_BERT = {role: TokenConfig(f"[{role.upper()}]") for role in ("pad", "unk", "cls", "sep", "mask")}
_GPT = {role: TokenConfig("<|endoftext|>") for role in ("unk", "bos", "eos")}
_QWEN = {role: TokenConfig("<|endoftext|>") for role in ("pad", "unk", "eos")}

# Families, by the `model_type` of config.json, that use a file as implemented here.
T5_TYPES = ("t5", "mt5", "umt5", "longt5", "switch_transformers")
FAIRSEQ_TYPES = ("mbart", "xlm-roberta", "m2m_100")  # m2m_100: NLLB
BART_TYPES = ("bart", "roberta", "longformer", "led")
GPT_TYPES = ("gpt2", "gpt_neo", "gptj", "whisper")
QWEN_TYPES = ("qwen2",)
BERT_TYPES = ("bert", "distilbert", "electra", "mobilebert")
#: how Qwen2 splits text before BPE: contractions, words with the character before them, single digits, punctuation
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WHISPER_TIMESTAMP = r"<\|\d+\.\d\d\|>"
TOKENIZER_FAMILIES: dict[str, TokenizerFamily] = {
    **dict.fromkeys((*T5_TYPES, "marian"), TokenizerFamily(PLAIN_TOKENS)),
    **dict.fromkeys((*FAIRSEQ_TYPES, *BART_TYPES), TokenizerFamily(FAIRSEQ_TOKENS)),
    "pegasus": TokenizerFamily(PEGASUS_TOKENS),
    **dict.fromkeys((*BERT_TYPES, "roformer"), TokenizerFamily(_BERT)),
    **dict.fromkeys(GPT_TYPES, TokenizerFamily(_GPT)),
    "whisper": TokenizerFamily(_GPT, hidden_tokens=WHISPER_TIMESTAMP),
    **dict.fromkeys(QWEN_TYPES, TokenizerFamily(_QWEN, split_pattern=QWEN_PATTERN, is_nfc=True)),
    **dict.fromkeys(("llama", "mistral", "gemma"), TokenizerFamily(UNK_BOS_EOS)),
}
NO_FAMILY = TokenizerFamily()  # of an unknown model_type: the files leave nothing out


def tokenizer_family(files: TokenizerFiles, default: TokenizerFamily = NO_FAMILY) -> TokenizerFamily:
    """Return what the tokenizer files of a checkpoint's model family leave out, such as names of special tokens.

    The family is that of the `model_type` in `config.json`; for unknown ones, `default` is returned.
    """
    return TOKENIZER_FAMILIES.get(str(files.config.get("model_type")), default)


def known_family(files: TokenizerFiles, file_names: str, types: Sequence[str]) -> TokenizerFamily:
    """Return what the tokenizer files of a checkpoint's model family leave out, such as names of special tokens.

    The `model_type` in `config.json` must be one of `types`, else a UserError is raised: other families use files with
    the same names (`file_names`, for the error message) differently. A folder whose `config.json` states no type, or is
    missing, is taken for the first one of `types`.
    """
    model_type = files.config.get("model_type", types[0])
    if model_type not in types:
        raise UserError(
            f"{files.folder} has {file_names} of a tokenizer for models of type {model_type!r}, which is not "
            "supported: save the tokenizer as tokenizer.json with save_pretrained of transformers"
        )
    return TOKENIZER_FAMILIES[model_type]
