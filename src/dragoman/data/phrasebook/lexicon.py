"""The words of the phrasebook: every English word has exactly one German counterpart in its place of the grammar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun with its gender and forms; `weak` is the German singular outside the nominative, where it has its own."""

    singular: str
    plural: str  # empty for mass nouns (milk), which have none
    gender: str  # m, f or n
    german: str
    german_plural: str
    weak: str
    kinds: tuple[str, ...]  # what verbs and adjectives ask for; the first chooses the adjectives
    adjectives: tuple[Adjective, ...]

    def form(self, case: str, plural: bool) -> str:
        if not plural:
            return self.german if case == "nom" else self.weak
        needs_n = case == "dat" and not self.german_plural.endswith(("n", "s"))
        return self.german_plural + "n" * needs_n


@dataclass(frozen=True, eq=False)
class Adjective:
    english: str
    german: str

    def form(self, ending: str) -> str:
        return self.german.removesuffix("e") + ending if ending else self.german


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages, what it governs, and which adjuncts make sense beside it."""

    base: str
    third: str
    participle: str
    particle: str  # the "up" of "stand up", the "to" of "belong to"
    infinitive: str
    finite: tuple[str, str, str, str]  # ich, du, er, plural; without the separable prefix
    german_participle: str
    prefix: str  # the "an" of "anrufen"
    auxiliary: str  # "have" or "be": haben or sein in the perfect
    subject: tuple[str, ...]  # kinds of noun
    objects: tuple[tuple[str, tuple[str, ...]], ...]  # (case, kinds of noun), dative first
    adjuncts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Modal:
    """A verb that takes an infinitive: the German one waits at the end of the clause."""

    base: str
    third: str
    finite: tuple[str, str, str, str]

    @property
    def full(self) -> bool:
        """Whether English treats it as a full verb: "does not want to" beside "will not"."""
        return self.base == "want"


@dataclass(frozen=True, eq=False)
class Adverb:
    english: str
    german: str


_OF_THINGS = "old new big small red blue black beautiful"
_ADJECTIVES_OF = {
    "person": "old young tired happy friendly sick clever sad hungry quiet",
    "young": "young tired happy friendly sick clever sad hungry quiet",
    "aged": "old tired happy friendly sick clever sad hungry quiet",
    "animal": "old young big small black hungry tired",
    "food": "fresh good warm cold",
    "drink": "cold warm good",
    "readable": "old new good beautiful",
    "thing": _OF_THINGS,
    "furniture": _OF_THINGS,
    "vehicle": _OF_THINGS,
    "opening": _OF_THINGS,
    "building": "old new big small beautiful quiet",
    "area": "old big small beautiful quiet",
    "plant": "old big small beautiful",
}

ADJECTIVES = {
    english: Adjective(english, german)
    for english, german in (
        line.split()
        for line in """
        old alt; young jung; new neu; big groß; small klein; good gut; beautiful schön; red rot; blue blau
        black schwarz; warm warm; cold kalt; fresh frisch; tired müde; happy glücklich
        friendly freundlich; sick krank; clever klug; sad traurig; hungry hungrig; quiet ruhig
        """.replace("\n", ";").split(";")
        if line.strip()
    )
}

# English singular, plural: German with article, plural[, weak singular] | kinds
_NOUNS = """
man, men: der Mann, Männer | person unowned
woman, women: die Frau, Frauen | person unowned
child, children: das Kind, Kinder | young person
boy, boys: der Junge, Jungen, Jungen | young person unowned
girl, girls: das Mädchen, Mädchen | young person unowned
doctor, doctors: der Arzt, Ärzte | person
teacher, teachers: der Lehrer, Lehrer | person
student, students: der Student, Studenten, Studenten | person
friend, friends: der Freund, Freunde | person
guest, guests: der Gast, Gäste | person
mother, mothers: die Mutter, Mütter | person kin single
father, fathers: der Vater, Väter | person kin single
sister, sisters: die Schwester, Schwestern | person kin
brother, brothers: der Bruder, Brüder | person kin
aunt, aunts: die Tante, Tanten | person kin
grandmother, grandmothers: die Großmutter, Großmütter | aged person kin
grandfather, grandfathers: der Großvater, Großväter | aged person kin
dog, dogs: der Hund, Hunde | animal washable
cat, cats: die Katze, Katzen | animal
horse, horses: das Pferd, Pferde | animal washable
bird, birds: der Vogel, Vögel | animal
mouse, mice: die Maus, Mäuse | animal
cow, cows: die Kuh, Kühe | animal
apple, apples: der Apfel, Äpfel | food washable
egg, eggs: das Ei, Eier | food dish
potato, potatoes: die Kartoffel, Kartoffeln | food dish washable
cake, cakes: der Kuchen, Kuchen | food
apple cake, apple cakes: der Apfelkuchen, Apfelkuchen | food
soup: die Suppe | food dish
potato soup: die Kartoffelsuppe | food dish
bread: das Brot | food
cheese: der Käse | food
water: das Wasser | drink
milk: die Milch | drink
coffee: der Kaffee | drink
tea: der Tee | drink
book, books: das Buch, Bücher | readable printed written portable
letter, letters: der Brief, Briefe | readable written portable
newspaper, newspapers: die Zeitung, Zeitungen | readable printed portable
picture book, picture books: das Bilderbuch, Bilderbücher | readable printed portable
key, keys: der Schlüssel, Schlüssel | thing portable
house key, house keys: der Hausschlüssel, Hausschlüssel | thing portable
bag, bags: die Tasche, Taschen | thing portable
hat, hats: der Hut, Hüte | thing portable
shirt, shirts: das Hemd, Hemden | thing portable washable
cup, cups: die Tasse, Tassen | thing portable washable
coffee cup, coffee cups: die Kaffeetasse, Kaffeetassen | thing portable washable
flower, flowers: die Blume, Blumen | thing portable
picture, pictures: das Bild, Bilder | thing portable
clock, clocks: die Uhr, Uhren | thing portable repairable
lamp, lamps: die Lampe, Lampen | thing repairable
chair, chairs: der Stuhl, Stühle | furniture repairable
table, tables: der Tisch, Tische | furniture repairable
kitchen table, kitchen tables: der Küchentisch, Küchentische | furniture repairable
car, cars: das Auto, Autos | vehicle washable repairable
bicycle, bicycles: das Fahrrad, Fahrräder | vehicle washable repairable
door, doors: die Tür, Türen | opening repairable
window, windows: das Fenster, Fenster | opening repairable
house, houses: das Haus, Häuser | building
garden house, garden houses: das Gartenhaus, Gartenhäuser | building single
school, schools: die Schule, Schulen | building
church, churches: die Kirche, Kirchen | building unowned sight
hospital, hospitals: das Krankenhaus, Krankenhäuser | building unowned single
library, libraries: die Bibliothek, Bibliotheken | building unowned single
garden, gardens: der Garten, Gärten | area outdoors single
kitchen, kitchens: die Küche, Küchen | area single
room, rooms: das Zimmer, Zimmer | area single
city, cities: die Stadt, Städte | area single unowned sight
village, villages: das Dorf, Dörfer | area outdoors single unowned sight
park, parks: der Park, Parks | area outdoors single unowned sight
forest, forests: der Wald, Wälder | area outdoors single unowned sight
tree, trees: der Baum, Bäume | plant single
apple tree, apple trees: der Apfelbaum, Apfelbäume | plant single
"""

# English / German infinitive, ich, du, er, perfect; "|" after a separable prefix / subject / objects / adjuncts
_VERBS = """
sleep sleeps slept / schlafen schlafe schläfst schläft hat geschlafen / person animal / / place here well
work works worked / arbeiten arbeite arbeitest arbeitet hat gearbeitet / person / / place here company slowly well alone
laugh laughs laughed / lachen lache lachst lacht hat gelacht / person / / place loudly quietly
sing sings sung / singen singe singst singt hat gesungen / person / / place here company loudly quietly well
dance dances danced / tanzen tanze tanzt tanzt hat getanzt / person / / place here company slowly well alone
wait waits waited / warten warte wartest wartet hat gewartet / person animal / / place here alone
play plays played / spielen spiele spielst spielt hat gespielt / person animal / / place here company loudly alone
swim swims swum / schwimmen schwimme schwimmst schwimmt ist geschwommen / person animal / / here slowly well alone
go goes gone / gehen gehe gehst geht ist gegangen / person / / goal company slowly alone
come comes come / kommen komme kommst kommt ist gekommen / person / / goal origin alone
run runs run / laufen laufe läufst läuft ist gelaufen / person animal / / goal origin quickly
arrive arrives arrived / an|kommen komme kommst kommt ist an|gekommen / person / / company alone
stand stands stood up / auf|stehen stehe stehst steht ist auf|gestanden / person / / slowly quickly
see sees seen / sehen sehe siehst sieht hat gesehen / person animal / acc person animal building thing / place
know knows known / kennen kenne kennst kennt hat gekannt / person / acc person sight / stative
love loves loved / lieben liebe liebst liebt hat geliebt / person / acc person animal sight / stative
find finds found / finden finde findest findet hat gefunden / person / acc portable animal / place quickly
need needs needed / brauchen brauche brauchst braucht hat gebraucht / person / acc thing vehicle furniture / stative
buy buys bought / kaufen kaufe kaufst kauft hat gekauft / person / acc thing food vehicle printed / beneficiary
sell sells sold / verkaufen verkaufe verkaufst verkauft hat verkauft / person / acc thing food vehicle furniture / here
eat eats eaten / essen esse isst isst hat gegessen / person / acc food / place slowly quickly
drink drinks drunk / trinken trinke trinkst trinkt hat getrunken / person / acc drink / place slowly quickly
read reads read / lesen lese liest liest hat gelesen / person / acc readable / place here slowly
write writes written / schreiben schreibe schreibst schreibt hat geschrieben / person / acc written / place slowly
cook cooks cooked / kochen koche kochst kocht hat gekocht / person / acc dish / here beneficiary
wash washes washed / waschen wasche wäschst wäscht hat gewaschen / person / acc washable / place slowly
repair repairs repaired / reparieren repariere reparierst repariert hat repariert / person / acc repairable / quickly
carry carries carried / tragen trage trägst trägt hat getragen / person / acc portable furniture / goal slowly
visit visits visited / besuchen besuche besuchst besucht hat besucht / person / acc person sight / alone
ask asks asked / fragen frage fragst fragt hat gefragt / person / acc person /
call calls called / an|rufen rufe rufst ruft hat an|gerufen / person / acc person / quickly
invite invites invited / ein|laden lade lädst lädt hat ein|geladen / person / acc person /
open opens opened / auf|machen mache machst macht hat auf|gemacht / person / acc opening / slowly quickly quietly
close closes closed / zu|machen mache machst macht hat zu|gemacht / person / acc opening / slowly quickly quietly
help helps helped / helfen helfe hilfst hilft hat geholfen / person / dat person / place
thank thanks thanked / danken danke dankst dankt hat gedankt / person / dat person /
follow follows followed / folgen folge folgst folgt ist gefolgt / person animal / dat person / goal slowly quickly
believe believes believed / glauben glaube glaubst glaubt hat geglaubt / person / dat person / stative
belong belongs belonged to / gehören gehöre gehörst gehört hat gehört / thing food furniture / dat person / stative
give gives given / geben gebe gibst gibt hat gegeben / person / dat person, acc portable food /
show shows shown / zeigen zeige zeigst zeigt hat gezeigt / person / dat person, acc portable vehicle building /
bring brings brought / bringen bringe bringst bringt hat gebracht / person / dat person, acc portable food drink /
"""

# Verbs whose object is a clause. "know" and "believe" stand here and above: what follows decides between them.
_CLAUSE_VERBS = """
know knows known / wissen weiß weißt weiß hat gewusst / person / / stative that whether
believe believes believed / glauben glaube glaubst glaubt hat geglaubt / person / / stative that
hope hopes hoped / hoffen hoffe hoffst hofft hat gehofft / person / / stative that
say says said / sagen sage sagst sagt hat gesagt / person / / that
tell tells told / sagen sage sagst sagt hat gesagt / person / dat person / that
ask asks asked / fragen frage fragst fragt hat gefragt / person / acc person / whether
"""


def _nouns() -> dict[str, Noun]:
    nouns = {}
    for line in _NOUNS.strip().splitlines():
        english, rest = line.split(": ")
        german, kinds = rest.split(" | ")
        singular, _, plural = english.partition(", ")
        article, form = german.split(" ", 1)
        forms = form.split(", ")
        adjectives = tuple(ADJECTIVES[name] for name in _ADJECTIVES_OF[kinds.split()[0]].split())
        nouns[singular] = Noun(
            singular=singular,
            plural=plural,
            gender={"der": "m", "die": "f", "das": "n"}[article],
            german=forms[0],
            german_plural=forms[1] if plural else "",
            weak=forms[2] if len(forms) == 3 else forms[0],
            kinds=tuple(kinds.split()),
            adjectives=adjectives,
        )
    return nouns


def _verbs(table: str) -> dict[str, Verb]:
    verbs = {}
    for line in table.strip().splitlines():
        english, german, subject, governed, adjuncts = (column.strip() for column in line.split("/"))
        base, third, participle, *particle = english.split()
        infinitive, first, second, german_third, auxiliary, german_participle = german.split()
        prefix, separable, stem = infinitive.rpartition("|")
        cases = [case.split() for case in governed.split(",") if case]
        verbs[base] = Verb(
            base=base,
            third=third,
            participle=participle,
            particle="".join(particle),
            infinitive=infinitive.replace("|", ""),
            finite=(first, second, german_third, stem),
            german_participle=german_participle.replace("|", ""),
            prefix=prefix if separable else "",
            auxiliary={"hat": "have", "ist": "be"}[auxiliary],
            subject=tuple(subject.split()),
            objects=tuple((case, tuple(kinds)) for case, *kinds in cases),
            adjuncts=tuple(adjuncts.split()),
        )
    return verbs


def _adverbs(table: str) -> dict[str, Adverb]:
    return {english: Adverb(english, german) for english, german in (pair.split(": ") for pair in table.split(", "))}


NOUNS = _nouns()
VERBS = _verbs(_VERBS)
CLAUSE_VERBS = _verbs(_CLAUSE_VERBS)
AUXILIARIES = {"have": ("habe", "hast", "hat", "haben"), "be": ("bin", "bist", "ist", "sind")}
BE = Verb("be", "is", "been", "", "sein", AUXILIARIES["be"], "gewesen", "", "be", (), (), ())
MODALS = {
    "can": Modal("can", "can", ("kann", "kannst", "kann", "können")),
    "must": Modal("must", "must", ("muss", "musst", "muss", "müssen")),
    "should": Modal("should", "should", ("sollte", "solltest", "sollte", "sollten")),
    "want": Modal("want", "wants", ("will", "willst", "will", "wollen")),
    "will": Modal("will", "will", ("werde", "wirst", "wird", "werden")),
}

TIMES = _adverbs("today: heute, now: jetzt, every day: jeden Tag, tomorrow: morgen, soon: bald")
FREQUENCIES = _adverbs("often: oft, always: immer, sometimes: manchmal, never: nie, already: schon")
MANNERS = _adverbs("slowly: langsam, quickly: schnell, loudly: laut, quietly: leise, well: gut, alone: allein")
PLACES = _adverbs("here: hier, there: dort")
PERHAPS = Adverb("perhaps", "vielleicht")
VERY = Adverb("very", "sehr")
QUESTIONS = _adverbs("where: wo, when: wann, why: warum")
WHERE_TO = Adverb("where", "wohin")
CONJUNCTIONS = {
    "because": "weil", "although": "obwohl", "if": "wenn", "while": "während", "before": "bevor",
    "that": "dass", "whether": "ob", "and": "und", "but": "aber",
}  # fmt: skip

# English preposition: German preposition and the case it governs
PREPOSITIONS = {
    "in": ("in", "dat"), "into": ("in", "acc"), "to": ("zu", "dat"), "from": ("aus", "dat"),
    "with": ("mit", "dat"), "without": ("ohne", "acc"), "for": ("für", "acc"),
    "behind": ("hinter", "dat"), "under": ("unter", "dat"),
}  # fmt: skip
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}

NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Thomas", "Sophie", "Max", "Emma", "Karl")
NUMBERS = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben",
    "eight": "acht", "nine": "neun", "ten": "zehn",
}  # fmt: skip
POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}

# English subject and object form; German nominative, accusative, dative; agreement as in Verb.finite
PRONOUNS = {
    "I": ("I", "me", "ich", "mich", "mir", 0),
    "you": ("you", "you", "du", "dich", "dir", 1),
    "he": ("he", "him", "er", "ihn", "ihm", 2),
    "she": ("she", "her", "sie", "sie", "ihr", 2),
    "we": ("we", "us", "wir", "uns", "uns", 3),
    "they": ("they", "them", "sie", "sie", "ihnen", 3),
}
