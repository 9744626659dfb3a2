"""API keys: who may use the service, how much, and who may administer it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from dragoman.errors import UserError, unknown_name

YAML_SUFFIXES = (".yaml", ".yml")
SHA256_DIGITS = 64


@dataclass(frozen=True)
class ApiKey:
    """A key with its quotas and rights; of the key itself only a hash is kept.

    Attributes:
        name: its name in logs and messages
        digest: SHA-256 of the key
        requests_per_minute: 0: unlimited, None: the limit of the service
        characters_per_day: of all texts from midnight to midnight, UTC; None: unlimited
        priority: requests with a higher priority are translated first
        admin: whether the key may reload runs
    """

    name: str
    digest: bytes
    requests_per_minute: int | None = None
    characters_per_day: int | None = None
    priority: int = 0
    admin: bool = False


class ApiKeys:
    """The accepted API keys; without keys, all requests are accepted."""

    def __init__(self, keys: Iterable[ApiKey | str] | None = None, required: bool = True) -> None:
        """Accept these keys, given as text or with their quotas (`ApiKey`); None: accept all requests.

        Unless keys are `required`, requests without a key are accepted, too, and have the limits of the service.
        """
        descriptions = [_plain_key(key) if isinstance(key, str) else key for key in keys or ()]
        self._keys = {description.digest: description for description in descriptions}
        self.required = required and keys is not None

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file of keys: one per line, or YAML with names, quotas and rights.

        Empty lines, and those that begin with #, are skipped. An empty or unreadable file is a UserError.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(
                f"the file of API keys {path} cannot be read: {reason}; give a file with one key per line, or YAML"
            ) from None
        lines = [line.strip() for line in text.splitlines()]
        plain = [line for line in lines if line and not line.startswith("#")]
        if not plain:
            raise UserError(
                f"the file of API keys {path} is empty, so all requests would be rejected: write one key per line"
            )
        is_yaml = path.suffix in YAML_SUFFIXES or any(  # or a line such as "keys:", "- name: newsroom" or "---"
            re.fullmatch(r"keys:\s*(\[.*)?|-\s+\w+:\s.*|---", line) for line in plain
        )
        return _parse_yaml(text, path) if is_yaml else cls(plain)

    @property
    def names(self) -> list[str]:
        """The names of all keys."""
        return [key.name for key in self._keys.values()]

    def find(self, key: str | None) -> ApiKey | None:
        """Return the description of a key; None if there is no such key, or no key at all."""
        return None if key is None else self._keys.get(_digest(key))

    def accepts(self, key: str | None) -> bool:
        """Whether a request with this key (None: without a key) is accepted.

        If no keys are required, a request needs none, but one that it sends must be known. A service without any keys
        accepts whatever is sent.
        """
        if not self.required and (key is None or not self._keys):
            return True
        return self.find(key) is not None


def _digest(key: str) -> bytes:
    """Return the SHA-256 hash of a key; comparing hashes takes a time that says nothing about the key itself."""
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _plain_key(key: str) -> ApiKey:
    """Return a key of a file without names: it is named by the beginning of its hash, and has no quotas or rights."""
    digest = _digest(key)
    return ApiKey(f"key-{digest.hex()[:8]}", digest)


def _parse_yaml(text: str, path: Path) -> ApiKeys:
    """Parse a YAML file of keys: a mapping with the list `keys`, and `required`, by default true.

    Anything else is a UserError, as are two keys of one name or value, or no keys although they are required.
    """
    example = "keys: [{name: newsroom, key: …, characters_per_day: 1000000}]"
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", -1) + 1  # PyYAML counts from 0
        raise UserError(f"the file of API keys {path} is not valid YAML (line {line}): write {example}") from None
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise UserError(f"the file of API keys {path} needs a list 'keys': write {example}")
    for name in document:
        if name not in ("keys", "required"):
            raise unknown_name(f"entry in the file of API keys {path}:", str(name), ("keys", "required"))
    required = document.get("required", True)
    if not isinstance(required, bool):
        raise UserError(
            f"the entry 'required' in the file of API keys {path} must be true or false, but is {required!r}: correct "
            "it"
        )
    keys: dict[bytes, ApiKey] = {}
    for number, entry in enumerate(document["keys"], 1):
        key = _parse_key(entry, f"number {number} of {path}")
        if key.digest in keys or key.name in {other.name for other in keys.values()}:
            raise UserError(
                f"the API key {key.name} in {path} has the name or the key of an earlier one: give each API key its "
                "own name and key"
            )
        keys[key.digest] = key
    if not keys and required:
        raise UserError(f"the file of API keys {path} has none, so all requests would be rejected: write {example}")
    return ApiKeys(keys.values(), required)


def _parse_key(entry: Any, place: str) -> ApiKey:
    """Parse an entry of a YAML file of keys, such as {name: newsroom, key: …}.

    `place` says in errors where the entry is: "number 3 of keys.yaml".
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"].strip():
        raise UserError(
            f"the API key {place} must have fields, such as 'name' and 'key', but is {_described(entry)}: correct it"
        )
    name_and_place, values = f"{entry['name']!r}, {place},", dict(entry)
    known = ("key", "sha256", *(field.name for field in fields(ApiKey) if field.name != "digest"))
    for name in entry:
        if name not in known:
            raise unknown_name(f"field of the API key {name_and_place}", str(name), known)
    key, sha256 = values.pop("key", None), values.pop("sha256", None)
    if (key is None) == (sha256 is None):
        count = "neither" if key is None else "both"
        raise UserError(
            f"the API key {name_and_place} needs either 'key' or its hash 'sha256', but has {count}: give one of them"
        )
    for field in ("key", "sha256"):
        if entry.get(field) is not None and (not isinstance(entry[field], str) or not entry[field]):
            raise UserError(f"the API key {name_and_place} has a '{field}' that is not text: put it in quotation marks")
    if sha256 is not None and not re.fullmatch(rf"[0-9a-fA-F]{{{SHA256_DIGITS}}}", sha256):
        raise UserError(
            f"the API key {name_and_place} has a 'sha256' that is not {SHA256_DIGITS} hexadecimal digits: copy what "
            "sha256sum prints"
        )
    for field, minimum in (("requests_per_minute", 0), ("characters_per_day", 0), ("priority", -100)):
        value = values.get(field, 0)
        if type(value) is not int or value < minimum:
            raise UserError(
                f"the API key {name_and_place} has '{field}' {value!r}, but it must be a whole number of at least "
                f"{minimum}: correct it"
            )
    if type(values.get("admin", False)) is not bool:
        raise UserError(
            f"the API key {name_and_place} has 'admin' {values['admin']!r}, but it must be true or false: correct it"
        )
    return ApiKey(digest=_digest(key) if sha256 is None else bytes.fromhex(sha256), **values)


def _described(entry: Any) -> str:
    """Describe an invalid entry of a file of keys by the names of its fields; their values may be secret."""
    return f"a mapping without 'name' ({', '.join(map(str, entry))})" if isinstance(entry, dict) else "no mapping"
