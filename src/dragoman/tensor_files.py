"""safetensors files, read tensor by tensor: large ones are mapped into memory, not copied."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from dragoman.errors import UserError

#: Files of at least this size are mapped. Reading a smaller one takes no time, and its tensors do not depend on the
#: file any more, which may be on a network file system.
MIN_MAPPED_BYTES = 1 << 28
SUPPORTS_MAPPING = os.name != "nt"  # Windows does not remove or rename a file that is mapped
CPU = torch.device("cpu")
COMPARED_BYTES = 1 << 24  # of each tensor that are read at a time to compare two of them

#: names of data types in the header of a safetensors file
SAFETENSORS_TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}


class WeightSource(Protocol):
    """Weights by name that are read from their file one at a time."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of every weight, by name."""

    def load(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a weight of this dtype on the device."""


class StoredTensor(NamedTuple):
    """Where a tensor is in its file."""

    dtype: torch.dtype
    shape: torch.Size
    start: int  # bytes from the beginning of the file
    end: int


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file, read on access.

    Nothing stays open: the file is opened for every read, and a mapping lives as long as the tensors in it.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the header; raise an OSError or SafetensorError if the file is missing or damaged."""
        self.path = path
        with safe_open(path, framework="pt"):  # checks the header, and that the file is not truncated
            pass
        with path.open("rb") as file:  # 8 bytes with the size of the header, the header (JSON), the data
            header_bytes = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        data_start = 8 + header_bytes  # from which the offsets in the header count
        self.tensors: dict[str, StoredTensor] = {}
        for name, entry in sorted(header.items()):
            start, end = entry["data_offsets"]
            if entry["dtype"] not in SAFETENSORS_TYPES:
                raise UserError(
                    f"the tensor {name} in {path} has the data type {entry['dtype']}, which is not supported: convert "
                    f"it to one of {', '.join(SAFETENSORS_TYPES)}"
                )
            dtype, shape = SAFETENSORS_TYPES[entry["dtype"]], torch.Size(entry["shape"])
            self.tensors[name] = StoredTensor(dtype, shape, data_start + start, data_start + end)

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of every tensor, by name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the tensors."""
        return iter(self.tensors)

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor in its stored dtype, on the CPU; mapped from the file if that is large, otherwise read."""
        return self.load(name, self.tensors[name].dtype)

    def load(self, name: str, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
        """Return a tensor of this dtype on the device; mapped if the file is large and nothing has to be converted."""
        stored = self.tensors[name]
        if stored.start == stored.end:  # a tensor without elements
            return torch.empty(stored.shape, dtype=dtype, device=device)
        aligned = stored.start % stored.dtype.itemsize == 0  # kernels may need aligned memory: others are read
        if stored.dtype == dtype and device.type == "cpu" and aligned and self._is_mapped:
            data = torch.from_numpy(self._mapping[stored.start : stored.end])
        else:
            data = torch.from_numpy(self._read(stored.start, stored.end))
        return data.view(stored.dtype).view(stored.shape).to(device).to(dtype)

    def equal(self, name: str, other: TensorFile, other_name: str) -> bool:
        """Whether a tensor equals the tensor `other_name` of another file.

        Tensors of the same data type are compared byte by byte, a chunk at a time; others as float32.
        """
        first, second = self.tensors[name], other.tensors[other_name]
        if first.shape != second.shape:
            return False
        if first.dtype != second.dtype:
            return torch.equal(self.load(name, torch.float32), other.load(other_name, torch.float32))
        return all(
            np.array_equal(
                self._read(first.start + offset, min(first.start + offset + COMPARED_BYTES, first.end)),
                other._read(second.start + offset, min(second.start + offset + COMPARED_BYTES, second.end)),
            )
            for offset in range(0, first.end - first.start, COMPARED_BYTES)
        )

    @property
    def _is_mapped(self) -> bool:
        """Whether tensors are mapped into memory, not read: the file is large, and the system can rename mapped files.

        Pages of a mapped file are read when they are used, and the system can drop them again.
        """
        return SUPPORTS_MAPPING and self.path.stat().st_size >= MIN_MAPPED_BYTES

    @cached_property
    def _mapping(self) -> NDArray[np.uint8]:
        """The bytes of the whole file, mapped into memory (copy-on-write: changed tensors never reach the file)."""
        return np.memmap(self.path, dtype=np.uint8, mode="c")

    def _read(self, start: int, end: int) -> NDArray[np.uint8]:
        """Read the bytes from `start` up to `end` (exclusive) into memory; an OSError if the file ends before."""
        data = np.fromfile(self.path, dtype=np.uint8, count=end - start, offset=start)
        if len(data) != end - start:
            raise OSError(f"expected {end - start:,} bytes at position {start:,} of {self.path}, but it was truncated")
        return data


class LoadedTensors:
    """Tensors in memory as a source of weights."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Serve weights from `tensors`, which maps their names to tensors."""
        self.tensors = tensors

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shape of every tensor, by name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def load(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor of this dtype on the device."""
        return self.tensors[name].to(device, dtype)
