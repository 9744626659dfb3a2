"""Kernels for decoding steps on a CPU, written in C and compiled once per machine: whole layers, and top-k.

A decoding step computes little for each of its many operations, so that Python and the allocation of results take most
of the time. The C compiler of the machine compiles `cpu_kernels.c` for its processor when the kernels are first needed,
in a second or two; the library is kept in the user's cache folder. Without a compiler, or with DRAGOMAN_CPU_KERNELS=0
in the environment, `library` returns None, and torch's operations are used, which define the results.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import shlex
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.parts.machine_cache import machine_file

SOURCE = Path(__file__).with_name("cpu_kernels.c")
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
OPENMP = "libgomp.so.1"  # the only library of threads that a compiled kernel can share with torch
COMPILERS = ("gcc", "cc", "clang")
COMPILE_SECONDS = 60  # after which a compiler is stopped


class LinearStruct(Structure):
    """A linear layer: W x + b."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64))


class NormStruct(Structure):
    """A norm; `kind` is one of NO_NORM, LAYER_NORM and RMS_NORM."""

    _fields_ = (("kind", c_int64), ("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_double))


NO_NORM, LAYER_NORM, RMS_NORM = range(3)


class AttentionStruct(Structure):
    """Attention with its residual connection and norms."""

    _fields_ = (
        *((name, NormStruct) for name in ("before", "after", "query_norm", "key_norm")),
        *((name, LinearStruct) for name in ("project", "output")),
        *((name, c_int64) for name in ("heads", "kv_heads", "width", "value_width")),
        ("scale", c_double),
        ("rotations", c_void_p),
    )


class FeedForwardStruct(Structure):
    """A feed-forward network with its residual connection and norms."""

    _fields_ = (
        *((name, NormStruct) for name in ("before", "after")),
        *((name, LinearStruct) for name in ("widen", "gate", "narrow")),
        ("activation", c_int64),
    )


class SearchStruct(Structure):
    """A search and its state, which a step changes in place."""

    _fields_ = (
        *((name, c_int64) for name in ("hypotheses", "max_tokens", "eos", "min_length", "num_suppressed")),
        *(
            (name, c_void_p)
            for name in ("suppressed", "max_length", "step", "tokens", "output_tokens", "scores", "done")
        ),
    )


class BufferStruct(Structure):
    """Hypotheses of each source that are not continued."""

    _fields_ = (
        ("size", c_int64),
        *((name, c_void_p) for name in ("normalized_scores", "scores", "lengths", "tokens")),
    )


class BeamStruct(Structure):
    """What beam search has besides."""

    _fields_ = (
        *((name, BufferStruct) for name in ("finished", "truncated")),
        *((name, c_int64) for name in ("rule", "n_best", "divisor_grows", "num_divisors")),
        ("divisors", c_void_p),
    )


#: the structure that the first argument of a function points to
STRUCTURES: dict[str, type[Structure]] = {
    "self_attention_step": AttentionStruct,
    "self_attention_core": AttentionStruct,
    "cross_attention_step": AttentionStruct,
    "cross_attention_core": AttentionStruct,
    "feed_forward_step": FeedForwardStruct,
    "linear_step": LinearStruct,
    "greedy_step": SearchStruct,
    "beam_step": SearchStruct,
}
_CACHES = "ii" + "ppp" + "pp" + "ii"  # rows, hypotheses; ancestors, positions; keys, values; length, threads
_MEMORY = "ii" + "ppp" + "ii"  # rows, hypotheses; keys, values, mask; length, threads
#: the other arguments of the functions in `cpu_kernels.c`: pointers p and integers i
_ARGUMENTS = {
    "self_attention_step": "pp" + _CACHES,
    "self_attention_core": "pp" + _CACHES,
    "cross_attention_step": "pp" + _MEMORY,
    "cross_attention_core": "pp" + _MEMORY,
    "feed_forward_step": "ppii",
    "linear_step": "ppii",
    "lanes": "",
    "struct_sizes": "p",
    "log_sum_exp": "ppiii",
    "best_continuations": "pppiiiippi",
    "greedy_step": "ppiii",
    "beam_step": "pppiii",
}


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled kernels, which are compiled now if they never were on this machine; None if they cannot be.

    Functions that return a number return 0, or 1 if there was no memory: use `check`.
    """
    if os.environ.get("DRAGOMAN_CPU_KERNELS") == "0" or os.name != "posix":
        return None
    options = (*FLAGS, *(["-fopenmp"] if _shares_openmp() else []))
    with suppress(OSError):
        place = machine_file("kernels", *options, SOURCE.read_text(encoding="utf-8"))
        if place is not None:
            return _load(place) or (_load(place) if _compile(place, options) else None)
    return None


def _load(place: Path) -> ctypes.CDLL | None:
    """Return the library in a file beside `place`; None if there is none that is whole and that only this user writes.

    The end of its name is the digest of its content: a damaged library could end the process.
    """
    for path in place.parent.glob(f"{place.name}-*.so"):
        status = path.stat()
        is_private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_private and path.stem.endswith(_digest(path)):
            functions = ctypes.CDLL(str(path))
            for name, arguments in _ARGUMENTS.items():
                types: list[Any] = [POINTER(STRUCTURES[name])] if name in STRUCTURES else []
                types += [c_void_p if one == "p" else c_int64 for one in arguments]
                getattr(functions, name).argtypes = types
            return functions
    return None


def _digest(path: Path) -> str:
    """Return a digest of the content of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _compile(place: Path, options: Sequence[str]) -> bool:
    """Compile the kernels into a file beside `place`, which appears when it is complete; return whether it succeeded.

    The compiler is that of the environment variable CC, or the first one of COMPILERS that works.
    """
    preferred = shlex.split(os.environ.get("CC", ""))
    compilers = [command for command in (preferred, *([name] for name in COMPILERS)) if command]
    serial = [option for option in options if option != "-fopenmp"]  # some compilers are without libgomp
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        result = Path(folder) / "kernels.so"
        for compiler, more in itertools.product(compilers, (["-march=native"], ["-mcpu=native"], [])):
            for used in (list(options), serial):
                command = [*compiler, *used, *more, "-o", str(result), str(SOURCE), "-lm"]
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(
                        command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_SECONDS
                    )
                    # a library of threads besides that of torch would compete with it
                    if used == serial or OPENMP.encode() in result.read_bytes():
                        result.chmod(0o500)
                        result.replace(place.with_name(f"{place.name}-{_digest(result)}.so"))
                        return True
    return False


def _shares_openmp() -> bool:
    """Whether torch uses the library of threads that the compiler links: two would compete for the processor."""
    with suppress(OSError), Path("/proc/self/maps").open() as maps:
        return any(Path(line.rstrip()).name.startswith(OPENMP) for line in maps)
    return False


def check(status: int) -> None:
    """Raise a MemoryError if a kernel returned that there was no memory."""
    if status:
        raise MemoryError("a decoding step needs memory for its intermediate results, but there is none left")


def can_read(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the kernels can read tensors: contiguous ones on the CPU; numbers in float32, indices in int64."""
    return all(one.dtype == dtype and one.is_contiguous() and one.device.type == "cpu" for one in tensors)


def pack_weight(functions: ctypes.CDLL, weight: Tensor) -> Tensor:
    """Arrange a weight, outputs × inputs, for the kernels: outputs in blocks of the width of a vector register.

    Returns blocks × inputs × width; missing outputs of the last block are 0.
    """
    outputs, inputs = weight.shape
    lanes = functions.lanes()
    padded = torch.nn.functional.pad(weight.detach(), (0, 0, 0, -outputs % lanes))
    return padded.view(-1, lanes, inputs).transpose(1, 2).contiguous()


def linear_struct(packed: Tensor, bias: Tensor | None, outputs: int) -> LinearStruct:
    """Describe the layer W x + b for the kernels, W being packed; the tensors must live as long as the result."""
    return LinearStruct(packed.data_ptr(), None if bias is None else bias.data_ptr(), outputs, packed.shape[1])


def log_sum_exp(functions: ctypes.CDLL, logits: Tensor) -> Tensor:
    """Return log Σ exp over the last dimension, … V → …, of logits that the kernels can read."""
    result = logits.new_empty(logits.shape[:-1])
    functions.log_sum_exp(
        logits.data_ptr(), result.data_ptr(), result.numel(), logits.shape[-1], torch.get_num_threads()
    )
    return result


def best_continuations(
    functions: ctypes.CDLL, scores: Tensor, logits: Tensor, log_normalizer: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return scores and indices (in K·V) of the `count` best continuations of each source, best first, B `count` each.

    The score of a continuation is that of its hypothesis, `scores` (B K), plus the log p of its token, at most 0:
    `logits` (B K V) − `log_normalizer` (B K). Equal ones are in the order of their indices.
    """
    batch, hypotheses, width = logits.shape
    best_scores = scores.new_empty(batch, count)
    indices = torch.empty(batch, count, dtype=torch.long)
    inputs = [tensor.data_ptr() for tensor in (scores, logits, log_normalizer)]
    sizes: Sequence[int] = (batch, hypotheses, width, count)
    functions.best_continuations(*inputs, *sizes, best_scores.data_ptr(), indices.data_ptr(), torch.get_num_threads())
    return best_scores, indices
