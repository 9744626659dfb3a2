"""Languages by code and name: ISO 639-1 (en), ISO 639-3 (eng) and English names."""

from __future__ import annotations

import re
from typing import NamedTuple

# Codes, the two-letter one first if there is one, and the name. Codes of one entry stand for the same language here,
# also where ISO 639-3 has one code for the language and another for its standard form (ara and arb, msa and zsm).
_CODES_AND_NAMES = """
af afr Afrikaans, am amh Amharic, ar ara arb Arabic, as asm Assamese, ast Asturian, ay aym ayr Aymara,
az aze azj Azerbaijani, ba bak Bashkir, be bel Belarusian, bg bul Bulgarian, bm bam Bambara, bn ben Bengali,
bo bod Tibetan, br bre Breton, bs bos Bosnian, ca cat Catalan, ceb Cebuano, cs ces Czech, cy cym Welsh, da dan Danish,
de deu German, dz dzo Dzongkha, ee ewe Ewe, el ell Greek, en eng English, eo epo Esperanto, es spa Spanish,
et est ekk Estonian, eu eus Basque, fa fas pes Persian, ff ful fuv Fulah, fi fin Finnish, fj fij Fijian, fo fao Faroese,
fr fra French, fy fry Western Frisian, ga gle Irish, gd gla Scottish Gaelic, gl glg Galician, gn grn Guarani,
gu guj Gujarati, ha hau Hausa, haw Hawaiian, he heb Hebrew, hi hin Hindi, hr hrv Croatian, ht hat Haitian Creole,
hu hun Hungarian, hy hye Armenian, id ind Indonesian, ig ibo Igbo, is isl Icelandic, it ita Italian, ja jpn Japanese,
jv jav Javanese, ka kat Georgian, kg kon Kongo, ki kik Kikuyu, kk kaz Kazakh, km khm Khmer, kn kan Kannada,
ko kor Korean, ks kas Kashmiri, ku kur kmr Kurdish, ky kir Kyrgyz, la lat Latin, lb ltz Luxembourgish, lg lug Ganda,
li lim Limburgish, ln lin Lingala, lo lao Lao, lt lit Lithuanian, lv lav lvs Latvian, mg mlg plt Malagasy,
mi mri Maori, mk mkd Macedonian, ml mal Malayalam, mn mon khk Mongolian, mr mar Marathi, ms msa zsm Malay,
mt mlt Maltese, my mya Burmese, nb nob Norwegian Bokmål, ne nep npi Nepali, nl nld Dutch, nn nno Norwegian Nynorsk,
no nor Norwegian, ny nya Chichewa, oc oci Occitan, om orm gaz Oromo, or ori ory Odia, pa pan Punjabi, pl pol Polish,
ps pus pbt Pashto, pt por Portuguese, qu que quy Quechua, rn run Rundi, ro ron Romanian, ru rus Russian,
rw kin Kinyarwanda, sa san Sanskrit, sc srd Sardinian, sd snd Sindhi, sg sag Sango, si sin Sinhala, sk slk Slovak,
sl slv Slovenian, sm smo Samoan, sn sna Shona, so som Somali, sq sqi als Albanian, sr srp Serbian, ss ssw Swati,
st sot Southern Sotho, su sun Sundanese, sv swe Swedish, sw swa swh Swahili, ta tam Tamil, te tel Telugu, tg tgk Tajik,
th tha Thai, ti tir Tigrinya, tk tuk Turkmen, tl tgl fil Tagalog, tn tsn Tswana, tr tur Turkish, ts tso Tsonga,
tt tat Tatar, tw twi Twi, ug uig Uyghur, uk ukr Ukrainian, ur urd Urdu, uz uzb uzn Uzbek, vi vie Vietnamese,
wo wol Wolof, xh xho Xhosa, yi yid ydd Yiddish, yo yor Yoruba, yue Cantonese, zh zho cmn Chinese, zu zul Zulu,
ace Acehnese, acm Mesopotamian Arabic, acq Ta'izzi-Adeni Arabic, aeb Tunisian Arabic, ajp South Levantine Arabic,
ak aka Akan, apc North Levantine Arabic, ars Najdi Arabic, ary Moroccan Arabic, arz Egyptian Arabic, awa Awadhi,
azb South Azerbaijani, ban Balinese, bem Bemba, bho Bhojpuri, bjn Banjar, bug Buginese, cjk Chokwe,
ckb Central Kurdish, crh Crimean Tatar, dik Southwestern Dinka, dyu Dyula, fon Fon, fur Friulian, hne Chhattisgarhi,
ilo Ilocano, kab Kabyle, kac Jingpho, kam Kamba, kbp Kabiye, kea Kabuverdianu, kmb Kimbundu, knc Central Kanuri,
lij Ligurian, lmo Lombard, ltg Latgalian, lua Luba-Kasai, luo Luo, lus Mizo, mag Magahi, mai Maithili, min Minangkabau,
mni Meitei, mos Mossi, nso Northern Sotho, nus Nuer, pag Pangasinan, pap Papiamento, prs Dari, sat Santali,
scn Sicilian, shn Shan, szl Silesian, taq Tamasheq, tpi Tok Pisin, tum Tumbuka, tzm Central Atlas Tamazight,
umb Umbundu, vec Venetian, war Waray
"""
_CODE = re.compile(r"([a-z]{2,3})(?:[-_]([a-z]{4}))?(?:[-_]([a-z]{2}|[0-9]{3}))?")  # language, script, region
_ENTRY = re.compile(r"((?:[a-z]{2,3} )+)(.+)", re.DOTALL)


def _parse_entries() -> dict[str, tuple[str, str]]:
    """Return for each code the first code of its entry in _CODES_AND_NAMES (en for eng), and the English name."""
    languages: dict[str, tuple[str, str]] = {}
    for entry in _CODES_AND_NAMES.split(","):
        match = _ENTRY.fullmatch(entry.strip())  # codes, name
        assert match is not None, entry
        codes, name = match[1].split(), " ".join(match[2].split())
        languages |= dict.fromkeys(codes, (codes[0], name))
    return languages


_LANGUAGES = _parse_entries()
_FIRST_CODES = {name.casefold(): code for code, name in _LANGUAGES.values()}  # by name
#: English names of languages by ISO 639-1 and 639-3 code
LANGUAGE_NAMES = {code: name for code, (_, name) in _LANGUAGES.items()}


class LanguageTag(NamedTuple):
    """A language, and the script that a code names besides; None if it names none."""

    language: str  # the shortest code: en for eng_Latn and English
    script: str | None = None


def parse_language(text: str) -> LanguageTag:
    """Parse a code such as en, eng, en_XX, pt-BR or eng_Latn, or an English name; regions are left out."""
    folded = " ".join(text.casefold().split())
    if folded in _FIRST_CODES:
        return LanguageTag(_FIRST_CODES[folded])
    match = _CODE.fullmatch(folded)  # language, script, region
    if match is None:
        return LanguageTag(folded)  # an unknown name
    language, script = match[1], match[2]
    return LanguageTag(_LANGUAGES.get(language, (language,))[0], script and script.title())


def language_spellings(code: str) -> list[str]:
    """Return the ways in which files may write the code of a language: as given and shortest, such as eng_Latn and en.

    A code with a region, such as en-GB, has no other form. For an empty code, the list is empty.
    """
    match = _CODE.fullmatch(code.casefold())  # language, script, region
    short = [parse_language(code).language] if match and not match[3] else []
    return list(dict.fromkeys([code, *short])) if code else []


def language_name(code: str) -> str:
    """Return the English name of a language by its code, such as eng_Latn; the code itself if it is unknown."""
    return LANGUAGE_NAMES.get(parse_language(code).language, code)
