"""The options of a Marian model, from `special:model.yml` in its archive and from decoder.yml, as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dragoman.errors import UserError
from dragoman.parts.feedforward import Activation

MAX_YAML_BYTES = 1 << 26  # larger files are refused before they are read
MODEL_OPTIONS = "special:model.yml"  # the entry of the archive model.npz that holds the options
#: all values stay text, so that a token such as "no" or "1" is none of YAML's other types
TEXT_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

#: Marian's names of activation functions → ours; its GELU is x · sigmoid(1.702 x)
MARIAN_ACTIVATIONS: dict[str, Activation] = {"swish": "silu", "relu": "relu", "gelu": "quick-gelu"}

#: options that must have one of these values, with Marian's default first
SUPPORTED_VALUES = {
    "type": ("transformer", "amun-transformer"),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": ("false",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-tied-layers": ("[]",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-train-positions": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-attention-mask": ("default",),
    "transformer-no-affine": ("false",),
    "transformer-pool": ("false",),
    "right-left": ("false",),
    "ulr": ("false",),
    "lemma-dim-emb": ("0",),
    "lemma-dependency": ("",),
    "input-types": ("[]", "['sequence', 'sequence']"),
}
#: options that the conversion reads, or that do not change what is computed, without the beginning `transformer-`
KNOWN_OPTIONS = {
    *("heads", "dim-ffn", "decoder-dim-ffn", "ffn-activation", "preprocess", "postprocess", "postprocess-emb"),
    *("postprocess-top", "no-bias", "guided-alignment-layer", "depth-scaling", "rnn-projection", "dim-aan"),
    *("aan-depth", "aan-activation", "aan-nogate", "alibi-shift", "alibi-trainable"),
    *("dropout", "dropout-attention", "dropout-ffn"),
}


class MarianOptions:
    """Options by name, read with types and Marian's defaults; `origin` names their file in messages."""

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        """Read options from `values`: texts, lists and dictionaries of them, by option name; `origin` is their file."""
        self.values, self.origin = values, origin

    @classmethod
    def parse(cls, text: str | bytes, origin: str) -> MarianOptions:
        """Parse YAML; raise a UserError if it is not a dictionary."""
        return cls(parse_yaml(text, origin), origin)

    def check_supported(self) -> None:
        """Raise a UserError that names an option with which Marian computes something that is not supported.

        An unknown option of the Transformer may do so, and is an error too unless it is false.
        """
        for name, supported in SUPPORTED_VALUES.items():
            value = str(self.values.get(name, supported[0]))
            if value not in supported:
                # an empty text is shown as ''
                raise self.unsupported(name, value, f"only {' or '.join(text or repr('') for text in supported)} is")
        for name, value in self.values.items():  # only the options of a Transformer can change what it computes
            if not name.startswith("transformer-") or name in SUPPORTED_VALUES or value == "false":
                continue
            if name.removeprefix("transformer-") not in KNOWN_OPTIONS:
                raise self.unsupported(name, value, "it is unknown, and may change what the model computes")

    def unsupported(self, name: str, value: Any, hint: str) -> UserError:
        """Return the error for an option whose value is not supported; `hint` says what is supported, or why not."""
        return UserError(f"{self.origin} has the option {name} {value}, which is not supported: {hint}")

    def text(self, name: str, default: str) -> str:
        """Return the value of an option, by default `default`, as text; a list or dictionary is a UserError."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise UserError(
                f"{self.origin} is damaged: the option {name} must be a single value, but is {value}; get the file "
                "again"
            )
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an option that is a whole number above 0; if it is missing, the default, or an error without one."""
        value = self.text(name, "" if default is None else str(default))
        if not value.isdecimal() or not 0 < int(value) < 1 << 31:
            raise UserError(
                f"{self.origin}: the option {name} must be a whole number above 0, but is {value!r}: correct it"
            )
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Return an option that is a number, by default `default`; another value is a UserError."""
        try:
            return float(self.text(name, str(default)))
        except ValueError:
            raise UserError(
                f"{self.origin}: the option {name} must be a number, but is {self.values[name]!r}: correct it"
            ) from None

    def flag(self, name: str) -> bool:
        """Return an option that is true (true, yes, on or 1) or false, by default false."""
        return self.text(name, "false").lower() in ("true", "yes", "on", "1")

    def operations(self, name: str, default: str, supported: str) -> str:
        """Return an option whose letters are operations of a layer: d dropout, a addition of the input, n norm.

        `supported` are the letters that are allowed; any other one is a UserError.
        """
        value = self.text(name, default)
        if unknown := set(value) - set(supported):
            raise self.unsupported(
                name, value, f"the operation {min(unknown)!r} is not, only those of {supported!r} are"
            )
        return value

    def vocabulary_sizes(self) -> tuple[int, int]:
        """Return the numbers of source and target tokens (dim-vocabs); anything but two numbers is a UserError."""
        sizes = self.values.get("dim-vocabs")
        if not isinstance(sizes, list) or len(sizes) != 2 or not all(str(size).isdecimal() for size in sizes):
            raise UserError(
                f"{self.origin}: the option dim-vocabs must be two numbers, the sizes of the source and the target "
                f"vocabulary, but is {sizes}: correct it"
            )
        return int(sizes[0]), int(sizes[1])

    def activation(self) -> Activation:
        """Return our name of the activation function of the feed-forward layers; an unknown one is a UserError."""
        name = self.text("transformer-ffn-activation", "swish")
        if name not in MARIAN_ACTIVATIONS:
            raise self.unsupported("transformer-ffn-activation", name, f"use one of {', '.join(MARIAN_ACTIVATIONS)}")
        return MARIAN_ACTIVATIONS[name]


def parse_yaml(text: str | bytes, origin: str) -> dict[str, Any]:
    """Parse a YAML dictionary, whose values stay text; raise a UserError if it is damaged."""
    try:
        document = yaml.load(text, TEXT_LOADER)  # a base loader makes nothing but text, lists and dictionaries
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{origin} is damaged, it is not YAML ({' '.join(str(error).split())}): get it again") from None
    if not isinstance(document, dict):
        raise UserError(f"{origin} is damaged: expected lines 'NAME: VALUE' with the options of Marian; get it again")
    return {str(name): value for name, value in document.items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file with a dictionary; raise a UserError if it is too large or damaged."""
    try:
        if (size := path.stat().st_size) > MAX_YAML_BYTES:
            raise UserError(
                f"{path} has {size:,} bytes, but a YAML file of Marian may have at most {MAX_YAML_BYTES:,}: name "
                "another file"
            )
        return parse_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check its path and permissions") from None
