"""The tokenizer files of a Hugging Face checkpoint folder, and the special tokens that they define.

The files are untrusted: their sizes are limited, nothing in them is executed, and damage is reported in one sentence.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from dragoman.errors import UserError
from dragoman.text.missing_pieces import NewTokens

ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
MAX_TOKENIZER_BYTES = 1 << 29
MAX_TOKEN_ID = 1 << 20
#: files of a tokenizer that are JSON objects and can be extended by tokens; the first has the vocabulary
JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
FILES_WITHOUT_TOKENS = ("chat_template.jinja", "normalizer.json")
ADDITIONAL_KEYS = ("additional_special_tokens", "extra_special_tokens")  # the older and the newer name


@dataclass(frozen=True)
class TokenConfig:
    """A special or added token; `lstrip` and `rstrip`: it includes the white space on its left or right."""

    content: str  # the text of the token, such as "<mask>"
    lstrip: bool = False
    rstrip: bool = False
    special: bool = True


TARGET_TOKENIZER_FOLDER = "target_tokenizer"  # in an export whose source and target have different vocabularies
#: all files of tokenizers, which are kept for an export
TOKENIZER_FILE_NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt", "vocab.txt", "target_vocab.json", "source.spm", "target.spm", "spiece.model"),
    *("sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model", "normalizer.json"),
    *(f"{TARGET_TOKENIZER_FOLDER}/tokenizer.json", f"{TARGET_TOKENIZER_FOLDER}/tokenizer_config.json"),
)


@dataclass(frozen=True)
class OriginalFiles:
    """The files that a tokenizer was read from, compressed."""

    encoded: Mapping[str, str] = field(default_factory=dict)  # name of a file → its content, by zlib and base64

    @classmethod
    def read(cls, folder: Path, missing: Mapping[str, str] | None = None) -> OriginalFiles:
        """Read all tokenizer files of a checkpoint folder; `missing` are contents of files that it may not have."""
        contents = {name: content.encode() for name, content in (missing or {}).items()}
        paths = {name: folder / name for name in TOKENIZER_FILE_NAMES if (folder / name).is_file()}
        contents |= {name: path.read_bytes() for name, path in paths.items()}
        return cls.from_contents(contents)

    @classmethod
    def from_contents(cls, contents: Mapping[str, bytes]) -> OriginalFiles:
        """Return the files with these contents, by their names."""
        compressed = {name: zlib.compress(content) for name, content in contents.items()}
        return cls({name: base64.b64encode(content).decode() for name, content in compressed.items()})

    def write(self, folder: Path) -> None:
        """Write the files into a folder; a UserError if they are damaged. Files with other names are left out."""
        for name in self.encoded.keys() & set(TOKENIZER_FILE_NAMES):  # no other names: they could be paths elsewhere
            content = self._content(name)
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)

    def with_tokens(self, new_tokens: NewTokens) -> OriginalFiles:
        """Return the files with further tokens; without files if tokenizer.json is missing or cannot be extended.

        Other files with a vocabulary, such as a SentencePiece model, are left out.
        """
        if "tokenizer.json" not in self.encoded:
            return OriginalFiles()
        documents = {name: json.loads(self._content(name)) for name in JSON_FILES if name in self.encoded}
        if new_tokens.add_to(documents["tokenizer.json"]) is None:
            return OriginalFiles()
        for document in (documents.get(name, {}) for name in JSON_FILES[1:] if new_tokens.is_special):
            for key in ADDITIONAL_KEYS:
                if isinstance(document.get(key), list):
                    document[key] += new_tokens.tokens.values()
            if isinstance(by_id := document.get("added_tokens_decoder"), dict):
                by_id |= {str(token_id): entry for token_id, entry in new_tokens.special_entries().items()}
        contents = {name: json.dumps(document, ensure_ascii=False) for name, document in documents.items()}
        extended = OriginalFiles.from_contents({name: content.encode() for name, content in contents.items()})
        kept = {name: self.encoded[name] for name in FILES_WITHOUT_TOKENS if name in self.encoded}
        return OriginalFiles({**extended.encoded, **kept})

    def _content(self, name: str) -> bytes:
        """Return the content of a file; a UserError if it is damaged."""
        try:
            return zlib.decompress(base64.b64decode(self.encoded[name]))
        except (ValueError, zlib.error):
            raise UserError(
                f"the tokenizer of the run is damaged: its file {name} cannot be read; import the checkpoint again"
            ) from None


class TokenizerFiles:
    """The tokenizer files in a checkpoint folder.

    Attributes:
        config: the model's `config.json`
        settings: `tokenizer_config.json`, empty if the folder has none
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], only: str = "") -> None:
        """Read the tokenizer's configuration files, if there are any; `config` is the model's `config.json`.

        With `only`, the name of a file, the folder is treated as if it contained no other file; "": all files count.
        """
        self.folder, self.config, self.only = folder, config, only
        self.settings = self.json("tokenizer_config.json") if self.has("tokenizer_config.json") else {}
        # special tokens by role, such as "pad_token"
        self._token_map = self.json("special_tokens_map.json") if self.has("special_tokens_map.json") else {}

    @property
    def tokenizer_class(self) -> str:
        """Name of the tokenizer's class in transformers, such as NllbTokenizerFast; "" if it is not known."""
        return str(self.settings.get("tokenizer_class") or self.config.get("tokenizer_class") or "")

    def has(self, name: str) -> bool:
        """Whether the folder has the file `name`, and this object may read it (`only` names no other file)."""
        return self.only in ("", name) and (self.folder / name).is_file()

    def text(self, name: str) -> str:
        """Read the text file `name` of the folder; raise a UserError if it is too large, unreadable or not UTF-8."""
        path = self.folder / name
        try:
            if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
                raise UserError(
                    f"{path} has {size:,} bytes, but a tokenizer file may have at most {MAX_TOKENIZER_BYTES:,}: use "
                    "another file"
                )
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the tokenizer file {path} cannot be read ({error.strerror}): check its permissions"
            ) from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is damaged, because it is not UTF-8: download it again") from None

    def json(self, name: str) -> dict[str, Any]:
        """Read the file `name` of the folder, which holds a JSON object; raise a UserError if it is damaged."""
        try:
            document = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.folder / name} is damaged, it is not JSON ({error}): download it again") from None
        if not isinstance(document, dict):
            raise UserError(f"{self.folder / name} is damaged: expected a JSON object; download it again")
        return document

    def vocabulary(self, name: str) -> dict[str, int]:
        """Read the JSON file `name` of the folder, which maps tokens to ids; raise a UserError if it is damaged."""
        ids = self.json(name)
        if not ids or not all(map(is_token_id, ids.values())):
            raise UserError(
                f"{self.folder / name} is damaged: expected an id (a number) for every token; download it again"
            )
        if len({*ids.values()}) < len(ids):
            raise UserError(f"{self.folder / name} is damaged: several tokens have the same id; download it again")
        return ids

    def tokens_by_role(self, defaults: Mapping[str, TokenConfig]) -> dict[str, TokenConfig]:
        """Return the special token of each role, such as "pad" or "eos"; `defaults` are for roles that no file defines.

        `tokenizer_config.json` has priority over `special_tokens_map.json`. A role that a file sets to null has no
        token. A file may give only the text of a token; if it is the default's, the default's properties (`lstrip`,
        `rstrip`) hold, too.
        """
        tokens = {}
        for role in ROLES:
            key, default = f"{role}_token", defaults.get(role)
            declared = [document[key] for document in (self.settings, self._token_map) if key in document]
            is_text_of_default = bool(default and declared and declared[0] == default.content)
            token = parse_token(declared[0]) if declared and not is_text_of_default else default
            if token:
                tokens[role] = token
        return tokens

    def additional_tokens(self) -> Iterator[TokenConfig]:
        """Yield the special tokens without a role such as "pad", a list or dictionary in the configuration files."""
        for listed in [document.get(key) for document in (self.settings, self._token_map) for key in ADDITIONAL_KEYS]:
            values = list(listed.values()) if isinstance(listed, dict) else listed
            yield from filter(None, map(parse_token, values if isinstance(values, list) else []))

    def added_tokens(self) -> dict[int, TokenConfig]:
        """Return the tokens that were added to the vocabulary after it was learned: id → token.

        `added_tokens_decoder` in tokenizer_config.json has priority over `added_tokens.json`; a UserError if an entry
        of these files is invalid.
        """
        added: dict[int, TokenConfig] = {}
        if self.has("added_tokens.json"):  # holds only names and ids
            ids = self.vocabulary("added_tokens.json")
            added = {token_id: TokenConfig(content, special=False) for content, token_id in ids.items()}
        listed = self.settings.get("added_tokens_decoder")
        for key, value in listed.items() if isinstance(listed, dict) else ():
            token = parse_token(value)
            if not token or not key.isdecimal() or not is_token_id(token_id := int(key)):
                raise UserError(
                    f"{self.folder / 'tokenizer_config.json'} is damaged: the entry {key!r} of added_tokens_decoder is "
                    "not a token with its id; download it again"
                )
            added[token_id] = token
        return added

    def role_ids(self, by_role: Mapping[str, TokenConfig], ids: Mapping[str, int]) -> dict[str, int]:
        """Return the token id of each role, such as "pad" or "decoder_start".

        `by_role` has the tokens with a role, `ids` the id of each token. A role without a token, or whose token has no
        id, may have an id in `config.json`, as "decoder_start" has; roles without a valid id are left out.
        """
        role_ids: dict[str, int] = {}
        for role in (*ROLES, "decoder_start"):
            token_id = ids.get(by_role[role].content) if role in by_role else None
            if token_id is None:
                token_id = self.config.get(f"{role}_token_id")
                token_id = token_id[0] if isinstance(token_id, list) and token_id else token_id  # several EOS tokens
            if is_token_id(token_id):
                role_ids[role] = token_id
        return role_ids


def parse_token(value: object) -> TokenConfig | None:
    """Parse a token that is written as its text, or as an object with its properties.

    Other values, and tokens without text, give None.
    """
    if isinstance(value, str):
        return TokenConfig(value) if value else None
    if not isinstance(value, dict) or not isinstance(content := value.get("content"), str) or not content:
        return None
    return TokenConfig(
        content,
        lstrip=bool(value.get("lstrip")),
        rstrip=bool(value.get("rstrip")),
        special=bool(value.get("special", True)),
    )


def is_token_id(value: object) -> TypeGuard[int]:
    """Whether a JSON value can be the id of a token: an integer from 0 to MAX_TOKEN_ID − 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_ID
