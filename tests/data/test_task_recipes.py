"""Recipes of tasks: they are valid, their files are found, generated or downloaded, and checked."""

from __future__ import annotations

import gzip
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman.data.task_recipes import TaskRecipe, corpus_files, load_recipe, read_recipe, recipe_names
from dragoman.data.task_recipes.corpus_files import CONVERSIONS, content_checksum, download, prepare_splits
from dragoman.errors import UserError
from dragoman.evaluation import LIKELIHOOD_METRICS, check_metric_names

MINIMAL = """
name = "own"
task = "translation"
shows = "nothing"
corpus = "two lines"
size = "2 / - / 2"
licence = "none"
metrics = ["exact"]
[splits]
train = { source = "train.{left}", target = "train.{right}" }
test = { source = "test.tsv" }
[variants]
forth = { left = "a", right = "b" }
back = { left = "b", right = "a" }
"""


def own_recipe(folder: Path, more: str = "", text: str = MINIMAL) -> TaskRecipe:
    """A recipe from a file with the entries of MINIMAL, after `more`."""
    (folder / "own.toml").write_text(more + text, encoding="utf-8")
    return load_recipe(str(folder / "own.toml"))


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_of_the_package_are_valid(name: str) -> None:
    """Metrics, generators, conversions and checksums are well-formed, and every file with a URL has a checksum."""
    recipe = load_recipe(name)
    assert recipe.name == name
    check_metric_names(recipe.metrics, LIKELIHOOD_METRICS)
    assert recipe.conversion in CONVERSIONS
    for variant in recipe.variants or [""]:
        for split in (recipe.split(name, variant) for name in recipe.splits):
            for file in filter(None, (split.source, split.target)):
                if address := corpus_files.file_address(recipe, file):
                    assert address.startswith("https://")
                    assert "{" not in address
                    assert re.fullmatch("[0-9a-f]{64}", recipe.files[file].sha256)
    assert recipe.generator or recipe.homepage or recipe.obtain
    assert all(figure.citation for figure in recipe.published)
    assert all(figure.note for figure in recipe.measured)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 1", "must be text|has no entry"),
        (MINIMAL.replace("licence", "license"), "did you mean 'licence'"),
        (MINIMAL.replace("train =", "training ="), "splits.train"),
        (MINIMAL.replace("{left}", "{middle}"), "placeholder"),
        (MINIMAL.replace('["exact"]', "[]"), "metrics"),
        (MINIMAL + "[settings]\n'training.stepz' = 3\n", "training.stepz|'steps'"),
        (MINIMAL + "[[published]]\nmetric='exact'\nvalue=1\nvariant='sideways'\n", "sideways"),
        ("url = 'http://example.org/{file}'\n" + MINIMAL, "https://"),
        ("name = ", "TOML"),
    ],
)
def test_mistakes_in_a_recipe(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        own_recipe(tmp_path, text=text)


def test_unknown_recipes_and_variants(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'multi30k'"):
        load_recipe("multi30")
    with pytest.raises(UserError, match="does not exist"):
        read_recipe(tmp_path / "none.toml")
    recipe = own_recipe(tmp_path)
    assert recipe.select_variants(None) == ["forth"]
    with pytest.raises(UserError, match="did you mean 'back'"):
        recipe.select_variants("bakc")
    with pytest.raises(UserError, match="no variants"):
        load_recipe("cogs").select_variants("simple")


def test_figures_belong_to_a_test_set_and_a_variant() -> None:
    recipe = load_recipe("multi30k")
    assert [figure.value for figure in recipe.figures("bleu")] == [41.02]  # en-de, 2016: the first ones
    assert [figure.value for figure in recipe.figures("bleu", "test_2017", "en-fr")] == [53.46]
    assert recipe.figures("chrf") == []


def test_files_are_found_plain_or_gzipped_in_the_folder_or_below_it(tmp_path: Path) -> None:
    corpus = tmp_path / "corpora" / "own"
    corpus.mkdir(parents=True)
    (corpus / "train.a.gz").write_bytes(gzip.compress(b"x\n"))
    (corpus / "train.b").write_text("y\n")
    recipe = own_recipe(tmp_path, f"files = {{'train.b' = {{ sha256 = '{hashlib.sha256(b'other').hexdigest()}' }} }}\n")
    with pytest.raises(UserError, match=r"lacks the files test.tsv \(plain or .gz\).*--data"):
        prepare_splits(recipe, "forth", corpus, lambda text: None)
    (corpus / "test.tsv").write_text("x\ty\n")
    notes: list[str] = []
    for folder in (corpus, corpus.parent):
        files = prepare_splits(recipe, "back", folder, notes.append)
        assert files == {"train": (corpus / "train.b", corpus / "train.a.gz"), "test": (corpus / "test.tsv", None)}
    assert len(notes) == 2
    assert "train.b differs from the published file" in notes[0]
    assert content_checksum(corpus / "train.a.gz") == hashlib.sha256(b"x\n").hexdigest()


def test_a_corpus_is_generated_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """In the named folder if it is new, else below it."""
    generated = "generator = 'tree'\ngenerator_settings = { train = 20, valid = 2, test = 2 }\n"
    text = MINIMAL.replace('"train.{left}", target = "train.{right}"', '"train.tsv"')
    recipe = own_recipe(tmp_path, generated, text)
    for folder, corpus in ((tmp_path / "new", tmp_path / "new"), (tmp_path, tmp_path / "own")):
        files = prepare_splits(recipe, "forth", folder, lambda text: None)
        assert files["train"] == (corpus / "train.tsv", None)
        assert files == prepare_splits(recipe, "forth", folder, lambda text: None)


def test_conversions() -> None:
    """Lines written by hand in the formats of SCAN and of Universal Dependencies."""
    scan = b"IN: jump twice OUT: I_JUMP I_JUMP\nIN: walk OUT: I_WALK\n"
    assert CONVERSIONS["scan"](scan) == b"jump twice\tI_JUMP I_JUMP\nwalk\tI_WALK\n"
    rows = ["# text = Don't go", "1-2\tDon't", "1\tDo\tdo\tAUX", "2\tn't\tnot\tPART", "2.1\tx\tx\tX", "3\tgo\tgo\tVERB"]
    conllu = "\n".join(rows) + "\n\n1\tYes\tyes\tINTJ\n\n"
    assert CONVERSIONS["conllu"](conllu.encode()) == b"Do n't go\tAUX PART VERB\nYes\tINTJ\n"


# ---- downloads, from a server on the loopback interface


class Answers(BaseHTTPRequestHandler):
    """Serves the recipe's files, and answers that a download must refuse."""

    def do_GET(self) -> None:
        body = {"/train.a": b"x\n", "/train.b": gzip.compress(b"y\n"), "/test.tsv": b"x\ty\n"}.get(
            self.path, b"z" * 100
        )
        self.send_response({"/missing": 404, "/away": 302, "/loop": 302}.get(self.path, 200))
        if self.path in ("/away", "/loop"):
            self.send_header("Location", "ftp://example.org/x" if self.path == "/away" else "/loop")
        self.send_header("Content-Length", str(len(body) + 5 * (self.path == "/short")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server; http is allowed, which the program itself never does."""
    monkeypatch.setattr(corpus_files, "ALLOWED_SCHEMES", {"https", "http"})
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def test_missing_files_are_downloaded_and_checked(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {"train.a": b"x\n", "train.b": b"y\n", "test.tsv": b"x\ty\n"}
    entries = ", ".join(
        f"'{name}' = {{ sha256 = '{hashlib.sha256(content).hexdigest()}', url = '{server}/{name}' }}"
        for name, content in contents.items()
    )
    recipe = own_recipe(tmp_path, f"files = {{ {entries} }}\n")
    messages: list[str] = []
    files = prepare_splits(recipe, "forth", tmp_path / "new", messages.append)
    assert {path.name: path.read_bytes() for pair in files.values() for path in pair if path} == contents
    assert len(messages) == 3
    prepare_splits(recipe, "forth", tmp_path / "new", messages.append)  # nothing is downloaded again
    assert len(messages) == 3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/train.a", "SHA-256 is [0-9a-f]{64}, expected 0000"),
        ("/missing", "cannot be downloaded \\(Not Found\\)"),
        ("/away", "only https is allowed"),
        ("/loop", "cannot be downloaded"),
        ("/short", "ended after 100 of 105 bytes|cannot be downloaded"),
        ("/large", "larger than"),
    ],
)
def test_a_refused_download_leaves_nothing(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, path: str, message: str
) -> None:
    monkeypatch.setattr(corpus_files, "MAX_DOWNLOAD_BYTES", 50 if path == "/large" else 1000)
    with pytest.raises(UserError, match=message):
        download(server + path, tmp_path / "new" / "file", "0" * 64, bytes)
    assert not list(tmp_path.iterdir())


def test_only_https_is_downloaded(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:9/x", "file:///etc/passwd", "ftp://example.org/x"):
        with pytest.raises(UserError, match="only https"):
            download(url, tmp_path / "file", "", bytes)


def test_gzip_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_files, "MAX_DOWNLOAD_BYTES", 1000)
    with pytest.raises(UserError, match="larger than"):
        corpus_files._decompress(gzip.compress(bytes(10_000)), "url")
    with pytest.raises(UserError, match="incomplete"):
        corpus_files._decompress(gzip.compress(b"abc")[:-4], "url")


SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the corpora in a folder shared/data beside the checkout")
def test_checksums_are_those_of_the_corpora() -> None:
    for name in recipe_names():
        recipe = load_recipe(name)
        folder = SHARED / (recipe.folder or recipe.name)
        for file, entry in list(recipe.files.items())[:5]:
            path = corpus_files.find_file(folder, file)
            assert path is None or content_checksum(path) == entry.sha256, file
