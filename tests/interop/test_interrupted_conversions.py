"""Exports and imports that are killed halfway or run twice at the same time: nothing incomplete looks complete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman import checkpoint, config
from dragoman.errors import UserError
from dragoman.run import write_model_file, write_tokenizers
from dragoman.storage import exclusive_folder
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    with exclusive_folder(folder) as partial:
        (partial / "file").write_text("1")
        with (
            pytest.raises(UserError, match="is being written by another process: wait for it, or choose another name"),
            exclusive_folder(folder),
        ):
            pass
        assert (partial / "file").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    with pytest.raises(UserError, match="already exists"), exclusive_folder(folder):
        pass
    assert (folder / "file").read_text() == "1"
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


def test_what_a_killed_process_has_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".out.lock").touch()
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "half").touch()
    with exclusive_folder(tmp_path / "out") as partial:
        assert not list(partial.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained translator that can be exported to transformers."""
    folder = tmp_path_factory.mktemp("conversions") / "run"
    tokenizer = learn_tokenizer(["The dog sleeps.", "A cat sees an old house."], "bpe", 300)
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    spec = SYSTEMS["transformer"].spec(vocabulary, "tiny", model_dim=16, layers=1, heads=2)
    folder.mkdir()
    settings = config.from_dict({"search": {"max_target_length": 6, "beam_size": 2}}, "the test")
    (folder / "config.yaml").write_text(config.to_yaml(settings))
    write_model_file(folder, "transformer", spec, spec.default_framing)
    write_tokenizers(folder, tokenizer, tokenizer)
    checkpoint.save(folder / "checkpoints" / "best", {"model": checkpoint.named_weights(spec.build())}, {})
    return folder


#: starts a conversion that stops after its weights are written, says so, and waits to be killed
STOPPED = """
import sys, time
from pathlib import Path
import dragoman
from dragoman import checkpoint
from dragoman.interop.huggingface import hf_export, importing

def stop(*arguments, **options):
    print("stopped", flush=True)
    time.sleep(1000)

kind, source, out = sys.argv[1:]
if kind == "export":
    hf_export.HuggingFaceExporter.verify = stop
    dragoman.export(source, out, "huggingface", log=lambda text: None)
else:
    importing.replace_symlink = stop
    importing.import_checkpoint(Path(source), Path(out), lambda text: None)
"""


def kill_halfway(kind: str, source: Path, out: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STOPPED, kind, source, out], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopped\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_killed_export_and_import_leave_nothing_complete_and_can_be_repeated(run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    kill_halfway("export", run_folder, exported)
    assert not exported.exists()
    assert {path.name for path in tmp_path.iterdir()} == {".exported.partial", ".exported.lock"}
    dragoman.export(run_folder, exported, "huggingface", log=lambda text: None)
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
    kill_halfway("import", exported, imported)
    assert not imported.exists()
    with pytest.raises(UserError):
        dragoman.load(imported, device="cpu")
    subprocess.run([sys.executable, "-m", "dragoman", "import", exported, imported], check=True, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "imported"]
    texts = ["The dog sleeps.", "A cat"]
    ours, again = (dragoman.load(folder, device="cpu").translate(texts) for folder in (run_folder, imported))
    assert [result.text for result in ours] == [result.text for result in again]


@pytest.mark.slow
def test_one_of_two_imports_at_the_same_time_succeeds(run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    exported, imported = tmp_path / "exported", tmp_path / "imported"
    dragoman.export(run_folder, exported, "huggingface", log=lambda text: None)
    command = [sys.executable, "-m", "dragoman", "import", exported, imported]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in processes]
    failed = [error for process, error in zip(processes, errors) if process.returncode]
    assert len(failed) == 2
    assert all("being written by another process" in error or "already" in error for error in failed), failed
    assert dragoman.load(imported, device="cpu").translate(["The dog"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported", "imported"]
