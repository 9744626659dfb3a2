"""The folder of a checkpoint from Hugging Face, and what its small files say of a tokenizer's special symbols.

The files are a stranger's: they are bounded in size, nothing in them is executed, and what is wrong is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dragoman.errors import UserError

ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")

_LONGEST_FILE = 1 << 29
_LARGEST_NUMBER = 1 << 20
_OTHERS = ("additional_special_tokens", "extra_special_tokens")  # the second is the newer name for the first


@dataclass(frozen=True)
class TokenConfig:
    """A token that does not come from cutting, and whether it takes the white space on its left and right with it."""

    name: str
    left: bool = False
    right: bool = False
    special: bool = True


class TokenizerFiles:
    """A folder; `settings` is its tokenizer_config.json, `config` the model's own config.json."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.settings = self.json("tokenizer_config.json") if self.has("tokenizer_config.json") else {}
        self._map = self.json("special_tokens_map.json") if self.has("special_tokens_map.json") else {}

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def text(self, name: str) -> str:
        path = self.folder / name
        try:
            if (size := path.stat().st_size) > _LONGEST_FILE:
                raise UserError(f"{path} is too large for a tokenizer: {size:,} bytes")
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is damaged, it is not UTF-8") from None

    def json(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.folder / name} is damaged, it is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise UserError(f"{self.folder / name} is damaged: it must be an object of JSON")
        return document

    def numbers(self, name: str) -> dict[str, int]:
        """A vocabulary: pieces and their numbers."""
        found = self.json(name)
        if not found or not all(map(is_number, found.values())):
            raise UserError(f"{self.folder / name} is damaged: it must give a number to every piece")
        if len({*found.values()}) < len(found):
            raise UserError(f"{self.folder / name} is damaged: it gives one number to several pieces")
        return found

    def by_role(self, defaults: Mapping[str, TokenConfig]) -> dict[str, TokenConfig]:
        """The special tokens that have a role, as the files name them, else as the family does."""
        found = {}
        for role in ROLES:
            key, default = f"{role}_token", defaults.get(role)
            values = [place[key] for place in (self.settings, self._map) if key in place]
            token = token_of(values[0]) if values else default
            if token:
                found[role] = default if default and values and values[0] == default.name else token
        return found

    def others(self) -> Iterator[TokenConfig]:
        """The special tokens without a role."""
        for some in [place.get(key) for place in (self.settings, self._map) for key in _OTHERS]:
            for value in some.values() if isinstance(some, dict) else some if isinstance(some, list) else ():
                if token := token_of(value):
                    yield token

    def added(self) -> dict[int, TokenConfig]:
        """The tokens that were added to the vocabulary later on, by number."""
        found: dict[int, TokenConfig] = {}
        if self.has("added_tokens.json"):  # knows nothing of them but names
            found = {n: TokenConfig(name, special=False) for name, n in self.numbers("added_tokens.json").items()}
        listed = self.settings.get("added_tokens_decoder")
        for key, value in listed.items() if isinstance(listed, dict) else ():
            token = token_of(value)
            if not token or not key.isdecimal() or not is_number(number := int(key)):
                raise UserError(f"{self.folder / 'tokenizer_config.json'} is damaged: it adds the token {key!r}")
            found[number] = token
        return found

    def roles(self, by_role: Mapping[str, TokenConfig], numbers: Mapping[str, int]) -> dict[str, int]:
        """The numbers of the symbols by role; where no name is known, the model's configuration may tell."""
        found: dict[str, int] = {}
        for role in (*ROLES, "decoder_start"):
            number = numbers.get(by_role[role].name) if role in by_role else None
            if number is None:
                number = self.config.get(f"{role}_token_id")
                number = number[0] if isinstance(number, list) and number else number
            if is_number(number):
                found[role] = number
        return found


def token_of(value: object) -> TokenConfig | None:
    """A token that is written as its name, or as an object with its properties."""
    if isinstance(value, str):
        return TokenConfig(value) if value else None
    if not isinstance(value, dict) or not isinstance(name := value.get("content"), str) or not name:
        return None
    return TokenConfig(name, bool(value.get("lstrip")), bool(value.get("rstrip")), bool(value.get("special", True)))


def is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_NUMBER
