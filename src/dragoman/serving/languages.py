"""Which languages a run translates between, and what they are called."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import UserError
from dragoman.run import Run

_NAMED = """
af Afrikaans, am Amharic, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bs Bosnian,
ca Catalan, cs Czech, cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish,
et Estonian, eu Basque, fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, ha Hausa,
he Hebrew, hi Hindi, hr Croatian, hu Hungarian, hy Armenian, id Indonesian, ig Igbo, is Icelandic, it Italian,
ja Japanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada, ko Korean, ky Kyrgyz, la Latin, lb Luxembourgish,
lo Lao, lt Lithuanian, lv Latvian, mg Malagasy, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi,
ms Malay, mt Maltese, my Burmese, nb Norwegian Bokmål, ne Nepali, nl Dutch, nn Norwegian Nynorsk, no Norwegian,
pa Punjabi, pl Polish, ps Pashto, pt Portuguese, ro Romanian, ru Russian, sa Sanskrit, sd Sindhi, si Sinhala,
sk Slovak, sl Slovenian, so Somali, sq Albanian, sr Serbian, sv Swedish, sw Swahili, ta Tamil, te Telugu,
th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, xh Xhosa, yi Yiddish,
yo Yoruba, zh Chinese, zu Zulu
"""
LANGUAGE_NAMES = {code: name for code, _, name in (one.strip().partition(" ") for one in _NAMED.split(","))}
CODE = "[a-zA-Z]{2,3}(?:[-_][a-zA-Z]{4})?"  # a language, with a script where one is told
PAIR = re.compile(rf"({CODE})[-_>:]({CODE})")


class LanguagePair(NamedTuple):
    """From which language into which."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def language_name(code: str) -> str:
    return LANGUAGE_NAMES.get(code, code)


def parse_run_argument(argument: str) -> tuple[Path, LanguagePair | None]:
    """RUN or RUN=en-de, as the command line has it."""
    folder, equals, pair = argument.rpartition("=")
    if not equals or Path(argument).exists():
        return Path(argument), None
    if not (match := PAIR.fullmatch(pair)):
        raise UserError(f"{argument!r} should name a run and its languages, such as {folder or 'runs/my'}=en-de")
    return Path(folder), LanguagePair(*(code.lower() for code in match.groups()))


def infer_language_pair(run: Run) -> LanguagePair:
    """The languages of a run: by the endings of its training files (train.en, train.de), or by its folder's name."""
    data = run.config.data
    endings = [{_ending(file) for file in files} for files in (data.source, data.target)]
    if all(len(codes) == 1 and codes <= LANGUAGE_NAMES.keys() for codes in endings):
        return LanguagePair(*(next(iter(codes)) for codes in endings))
    parts = re.split(r"[-_.]", run.folder.resolve().name.lower())
    for source, target in reversed(list(pairwise(parts))):  # the last two, as in opus-mt-en-de
        if source in LANGUAGE_NAMES and target in LANGUAGE_NAMES:
            return LanguagePair(source, target)
    raise UserError(f"the languages of {run.folder} are not known: say them, as in {run.folder}=en-de")


def _ending(file: str) -> str:
    return file.lower().removesuffix(".gz").rpartition(".")[2]
