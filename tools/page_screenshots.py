"""Take the screenshots of the web page that the documentation shows.

    python tools/page_screenshots.py http://127.0.0.1:5000 --output docs/page

The service offers two runs of the phrasebook, the first one a Transformer with a history of checkpoints:

    dragoman quickstart runs/transformer --system transformer && dragoman quickstart runs/bahdanau
    dragoman serve runs/transformer=en-de runs/bahdanau=en-de

Needs Playwright and Chromium. The states of the page are those of its links (serving/page/state.js).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

SENTENCE = "The old man reads the book."
TEXT = "The old man reads the book in the kitchen. You have opened their door and his window quickly.\n\nAnna sleeps."
VIEW = "#views"  # the area below the tabs
LAPTOP, PROJECTOR, PHONE = (1280, 820), (1920, 1080), (360, 720)


def open_word_menu(page: Page) -> None:
    """Show other words for the third word of the translation."""
    page.locator("#target").get_by_text("Mann", exact=True).first.click()
    page.locator(".choices .option").first.wait_for()


@dataclass(frozen=True)
class Picture:
    """A screenshot: the state of the page, what is done before, and the area that it shows ("": the window)."""

    name: str
    state: dict[str, Any]
    area: str = VIEW
    size: tuple[int, int] = LAPTOP
    color_scheme: Any = "light"
    prepare: Callable[[Page], None] = field(default=lambda page: None)


PICTURES = (
    Picture("translator", {"text": TEXT}, area="", size=(1280, 640), prepare=open_word_menu),
    Picture("attention", {"text": SENTENCE, "layer": 1, "heads": "1,2,4", "word": "q2"}),
    Picture("neurons", {"text": SENTENCE, "view": "neurons", "layer": 2, "head": 1, "neuronQuery": 2}),
    Picture("walk", {"text": SENTENCE, "view": "walk", "walkStep": 2, "walkAt": 30}),
    Picture("probabilities", {"text": SENTENCE, "view": "probabilities"}, area=""),
    Picture("beam", {"text": SENTENCE, "view": "beam", "beam": 3}),
    Picture("decoding", {"text": SENTENCE, "view": "decoding", "decoding": "sampling", "temperature": 1.5, "topK": 8}),
    Picture("compare", {"text": SENTENCE, "compare": "bahdanau"}, area="", size=(1280, 1180)),
    Picture("presentation", {"text": SENTENCE, "compare": "bahdanau", "present": 1}, area="", size=PROJECTOR),
    Picture("phone", {"text": SENTENCE}, area="", size=PHONE, color_scheme="dark"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="of the service")
    parser.add_argument("--output", type=Path, default=Path("docs/page"), help="folder of the PNG files")
    parser.add_argument("--only", nargs="*", help="names of pictures")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for picture in PICTURES:
            if options.only and picture.name not in options.only:
                continue
            width, height = picture.size
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=picture.color_scheme,
                reduced_motion="reduce",  # no picture of a transition
                device_scale_factor=2 if picture.size == PHONE else 1,
            )
            page.goto(f"{options.address}/#{urlencode(picture.state)}")
            page.wait_for_load_state("networkidle")
            picture.prepare(page)
            page.wait_for_timeout(500)
            path = options.output / f"{picture.name}.png"
            (page.locator(picture.area) if picture.area else page).screenshot(path=path)
            print(path)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
