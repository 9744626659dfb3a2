"""All parts by name: the kinds that a model's description may contain."""

from __future__ import annotations

import pkgutil
from dataclasses import is_dataclass
from importlib import import_module

from dragoman import parts
from dragoman.parts.spec import Spec

#: modules of this folder that are not imported for their parts, because they have none and need a GPU
_WITHOUT_PARTS = {"catalog", "kernels", "packed_attention"}

#: every Spec that a module of this folder defines
PARTS: dict[str, type[Spec]] = {
    name: part
    for info in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}.")
    if info.name.rpartition(".")[2] not in _WITHOUT_PARTS
    for name, part in vars(import_module(info.name)).items()
    if is_dataclass(part) and isinstance(part, type) and issubclass(part, Spec) and part.__module__ == info.name
}
