"""Sentences that leave a gender open, and the words by which a translation tells one; see gender.py for the form."""

from __future__ import annotations

_ENGLISH_PEOPLE = """
frame	The {} is tired.
frame	The {} reads the book.
frame	I see the {}.
"""

_GERMAN = """
doctor	Ärztin	Arzt
teacher	Lehrerin	Lehrer
student	Studentin	Student|Studenten
friend	Freundin	Freund
neighbour	Nachbarin	Nachbar|Nachbarn
nurse	Krankenschwester|Krankenpflegerin|Pflegerin	Krankenpfleger|Pfleger
engineer	Ingenieurin	Ingenieur
cook	Köchin	Koch
scientist	Wissenschaftlerin	Wissenschaftler
secretary	Sekretärin	Sekretär
pilot	Pilotin	Pilot|Piloten
boss	Chefin	Chef
"""

_FRENCH = """
student	étudiante	étudiant
friend	amie	ami
neighbour	voisine	voisin
nurse	infirmière	infirmier
cook	cuisinière	cuisinier
singer	chanteuse	chanteur
baker	boulangère	boulanger
director	directrice	directeur
"""

_SPANISH = """
doctor	doctora|médica	doctor|médico
teacher	profesora|maestra	profesor|maestro
friend	amiga	amigo
neighbour	vecina	vecino
nurse	enfermera	enfermero
engineer	ingeniera	ingeniero
cook	cocinera	cocinero
scientist	científica	científico
secretary	secretaria	secretario
boss	jefa	jefe
"""

_HUNGARIAN = [
    "Ő orvos.",
    "Ő ápoló.",
    "Ő mérnök.",
    "Ő tanár.",
    "Ő takarító.",
    "Ő vezető.",
    "Ő szép.",
    "Ő okos.",
    "Ő mosogat.",
    "Ő olvas.",
    "Ő épít.",
    "Ő varr.",
    "Ő tanít.",
    "Ő főz.",
    "Ő kutat.",
    "Ő gyereket nevel.",
    "Ő sokat keres.",
]

_TURKISH = [
    "O bir doktor.",
    "O bir hemşire.",
    "O bir mühendis.",
    "O bir öğretmen.",
    "O bir aşçı.",
    "O bir temizlikçi.",
    "O bir müdür.",
    "O güzel.",
    "O zeki.",
    "O çalışkan.",
    "O tembel.",
    "O kitap okuyor.",
    "O yemek yapıyor.",
]

_FINNISH = [
    "Hän on lääkäri.",
    "Hän on sairaanhoitaja.",
    "Hän on insinööri.",
    "Hän on opettaja.",
    "Hän on siivooja.",
    "Hän on johtaja.",
    "Hän on kaunis.",
    "Hän on viisas.",
    "Hän lukee kirjaa.",
    "Hän tiskaa.",
    "Hän rakentaa taloa.",
    "Hän hoitaa lapsia.",
]

_ENGLISH_WORDS = "she|her|hers|herself\the|him|his|himself\tthey|them|their|it"
_GERMAN_WORDS = "sie|ihr|ihre|ihren|ihrem\ter|ihn|ihm|sein|seine|seinen|seinem\tes"


def _sections() -> str:
    parts = [
        f"[en-de]{_ENGLISH_PEOPLE}{_GERMAN}",
        f"[en-fr]{_ENGLISH_PEOPLE}{_FRENCH}",
        f"[en-es]{_ENGLISH_PEOPLE}{_SPANISH}",
    ]
    for source, sentences in (("hu", _HUNGARIAN), ("tr", _TURKISH), ("fi", _FINNISH)):
        for target, told in (("en", _ENGLISH_WORDS), ("de", _GERMAN_WORDS)):
            parts.append("\n".join([f"[{source}-{target}]", *(f"{sentence}\t{told}" for sentence in sentences)]))
    return "\n".join(parts)


TEMPLATES = _sections()
