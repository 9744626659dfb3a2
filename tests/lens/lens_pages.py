"""Text that tries to be markup, and a check that it has not become it."""

from __future__ import annotations

from html.parser import HTMLParser

MALICE = "<script>alert(\"x\")</script> & 'quotes' </style><b>"
HUGE = "lang" * 1000


def balanced(page: str) -> list[str]:
    """The tags of a page in order, once it is certain that each is closed where it should be."""

    class Checker(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.seen: list[str] = []

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            self.seen.append(tag)
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    checker = Checker()
    checker.feed(page)
    checker.close()
    assert not checker.open
    return checker.seen
