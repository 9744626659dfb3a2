"""The arrays of a NumPy archive (.npz), read like the tensors of a safetensors file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import torch

from dragoman.errors import UserError
from dragoman.tensor_files import StoredTensor, TensorFile

#: data types of arrays, little-endian where that makes a difference
NPZ_TYPES = {
    **{"<f4": torch.float32, "<f2": torch.float16, "<f8": torch.float64},
    **{"|i1": torch.int8, "|u1": torch.uint8, "<i4": torch.int32, "<i8": torch.int64},
}
#: header of an entry of a zip archive, of which the lengths of the name and of the extra field are read
LOCAL_HEADER = struct.Struct("<26xHH")


class NpzFile(TensorFile):
    """The arrays of an uncompressed NumPy archive (.npz), by name.

    Nothing is unpickled: arrays of Python objects are refused.
    """

    def __init__(self, path: Path) -> None:
        """Find the arrays in the archive and read their headers: `tensors` has type, shape and bytes of each.

        Compressed or damaged archives, column-major matrices, and data types that are not supported are a UserError.
        """
        self.path = path
        self.tensors = {}
        try:
            with zipfile.ZipFile(path) as archive, path.open("rb") as file:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if info.compress_type != zipfile.ZIP_STORED:
                        raise UserError(
                            f"{path} has compressed arrays, which are not supported: write it again with numpy.savez, "
                            "not savez_compressed"
                        )
                    with archive.open(info) as member:
                        version = np.lib.format.read_magic(member)  # of the .npy format
                        if version == (1, 0):
                            shape, column_major, dtype = np.lib.format.read_array_header_1_0(member)
                        else:
                            shape, column_major, dtype = np.lib.format.read_array_header_2_0(member)
                        header_bytes = member.tell()
                    if dtype.str not in NPZ_TYPES or (column_major and len(shape) > 1):
                        problem = f"the data type {dtype}" if dtype.str not in NPZ_TYPES else "columns before rows"
                        raise UserError(
                            f"the array {name} in {path} has {problem}: write it again as float32, in row-major (C) "
                            "order"
                        )
                    file.seek(info.header_offset)
                    name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
                    # of the numbers, after the entry's header, its name, an extra field and the header of the array
                    start = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes + header_bytes
                    end = start + dtype.itemsize * int(np.prod(shape))
                    if end - start != info.file_size - header_bytes or end > path.stat().st_size:
                        raise ValueError(f"the array {name} is truncated")
                    self.tensors[name] = StoredTensor(NPZ_TYPES[dtype.str], torch.Size(shape), start, end)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, struct.error) as error:
            raise UserError(f"{path} is no archive of NumPy arrays, or is damaged, get it again: {error}") from None
