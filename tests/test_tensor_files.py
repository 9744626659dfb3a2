"""safetensors files are read tensor by tensor, and opening a model needs little more memory than its file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman import tensor_files
from dragoman.tensor_files import TensorFile

TENSORS = {
    "half": torch.arange(-3.0, 3.0).half().view(2, 3),
    "brain": torch.tensor([1.5, -2.0]).bfloat16(),
    "odd": torch.tensor([[1], [2], [3]], dtype=torch.uint8),  # what follows is not aligned
    "single": torch.linspace(0, 1, 7),
    "scalar": torch.tensor(3, dtype=torch.int64),
    "double": torch.tensor([1e-300], dtype=torch.float64),
    "empty": torch.empty(0, 4),
    "flags": torch.tensor([True, False]),
}


@pytest.fixture(params=[True, False], ids=["mapped", "read"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorFile:
    monkeypatch.setattr(tensor_files, "MIN_MAPPED_BYTES", 0 if request.param else 1 << 40)
    save_file(TENSORS, tmp_path / "some.safetensors", {"format": "pt"})
    return TensorFile(tmp_path / "some.safetensors")


def test_tensors_are_those_that_the_library_reads(file: TensorFile) -> None:
    expected = load_file(file.path)
    assert file.keys() == expected.keys() == file.shapes.keys()
    for name, tensor in expected.items():
        assert (file[name].dtype, file[name].shape, file.shapes[name]) == (tensor.dtype, tensor.shape, tensor.shape)
        assert torch.equal(file[name], tensor)
        assert torch.equal(file.load(name, torch.float32), tensor.float())


def test_a_changed_tensor_does_not_change_the_file(file: TensorFile) -> None:
    before = file.path.read_bytes()
    file["single"].add_(1)
    assert file.path.read_bytes() == before


def test_tensors_are_compared_without_loading_them(file: TensorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "COMPARED_BYTES", 8)
    save_file(
        {"same": TENSORS["single"].clone(), "other": TENSORS["single"] + 1e-6, "double": TENSORS["single"].double()},
        path := file.path.with_name("more.safetensors"),
    )
    more = TensorFile(path)
    assert file.equal("single", more, "same")
    assert file.equal("single", more, "double")
    assert not file.equal("single", more, "other")
    assert not file.equal("single", file, "half")


# ---- memory

DIM, FFN, VOCABULARY = 512, 1024, 1000
SINGLE_FILE = "model.safetensors"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_attention_heads": 8,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
}
#: opens a small checkpoint first, so that all libraries are loaded, and prints how much more memory the others need
PROGRAM = """
import pathlib, re, sys
import dragoman
from dragoman.interop.huggingface import import_checkpoint

def use(folder):
    dragoman.load(folder, device="cpu")
    import_checkpoint(folder, folder.with_name(folder.name + "-run"), lambda message: None)
    dragoman.load(folder.with_name(folder.name + "-run"), device="cpu")

peaks = []
for folder in map(pathlib.Path, sys.argv[1:]):
    use(folder)
    status = pathlib.Path("/proc/self/status").read_text()  # a new process; getrusage includes the parent's memory
    peaks.append(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
print(*peaks)
"""


def write_llama(folder: Path, layers: int) -> int:
    """Write a checkpoint without the help of transformers; return its size in bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    vocabulary = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shapes = {"embed_tokens": (VOCABULARY, DIM), "norm": (DIM,)}
    for layer in range(layers):
        shapes |= {f"layers.{layer}.self_attn.{matrix}_proj": (DIM, DIM) for matrix in "qkvo"}
        shapes |= {f"layers.{layer}.mlp.{matrix}_proj": (FFN, DIM) for matrix in ("gate", "up")}
        shapes |= {f"layers.{layer}.mlp.down_proj": (DIM, FFN)}
        shapes |= {f"layers.{layer}.{norm}_layernorm": (DIM,) for norm in ("input", "post_attention")}
    save_file({f"model.{name}.weight": torch.rand(shape) for name, shape in shapes.items()}, folder / SINGLE_FILE)
    return (folder / SINGLE_FILE).stat().st_size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the peak memory of a process")
def test_opening_and_importing_a_checkpoint_needs_little_more_memory_than_its_file(tmp_path: Path) -> None:
    write_llama(tmp_path / "small", layers=1)
    size = write_llama(tmp_path / "large", layers=4)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "small"), str(tmp_path / "large")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = (1024 * int(kilobytes) for kilobytes in result.stdout.split())
    assert size > 40_000_000
    assert after - before < 1.75 * size
