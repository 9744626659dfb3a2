"""Requests and responses of the HTTP API, as in its OpenAPI description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dragoman.run import Run, Translation
from dragoman.run.translation_warnings import TranslationWarning
from dragoman.serving.request_parsing import FORM, JSON, MULTIPART

#: a number, with None for infinities, which JSON cannot represent
FiniteOrNone = Annotated[float | None, BeforeValidator(lambda score: score if math.isfinite(score) else None)]


class ErrorResponse(BaseModel):
    error: str = Field(description="What is wrong with the request.")


#: of all routes, by status
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in {
        400: "Invalid request",
        403: "Missing or invalid API key",
        408: "The request arrived too slowly",
        413: "The request is too large",
        415: "The body is neither JSON nor a form",
        429: "Too many requests of this client",
        500: "Internal error",
        503: "The service is overloaded",
    }.items()
}


class ApiRequest(BaseModel):
    """A request that needs an API key if the service has keys."""

    #: error if a required field, whose name replaces {}, is missing
    missing_message: ClassVar[str] = "the field '{}' is missing"

    api_key: str | None = Field(None, description="API key, if the service needs one.")

    @property
    def texts(self) -> list[str]:
        """All texts of the request, which subclasses return; the service limits their number and characters."""
        raise NotImplementedError


# ---- LibreTranslate

PreserveName = Literal["none", "placeholders", "numbers"]  # values of `Preserve`
PRESERVE_FIELD: Any = Field(
    "placeholders",
    description="What the translation must contain unchanged: placeholders such as {name}, URLs and e-mail addresses, "
    "also numbers, or nothing.",
)
ATTRIBUTES_FIELD: Any = Field(False, description="Translate the attributes alt, title, placeholder and aria-label.")


class DetectRequest(ApiRequest):
    """A text whose language is detected; unknown fields are ignored."""

    missing_message: ClassVar[str] = "Invalid request: missing {} parameter"

    q: str | list[str] = Field(description="A text or a list of texts.")

    @property
    def texts(self) -> list[str]:
        """The texts of the field `q`, as a list."""
        return [self.q] if isinstance(self.q, str) else self.q


class LibreTranslateRequest(DetectRequest):
    """A request of LibreTranslate; unknown fields are ignored."""

    source: str = Field(description="The language of the text, or 'auto'.", examples=["en"])
    target: str = Field(description="The language to translate into.", examples=["de"])
    format: Literal["text", "html"] | None = Field(None, description="Default: 'text'.")
    alternatives: int | None = Field(None, ge=0, description="Number of alternative translations.")
    preserve: PreserveName = PRESERVE_FIELD
    translate_attributes: bool = ATTRIBUTES_FIELD


class FileRequest(ApiRequest):
    """The fields beside the document of /translate_file; unknown fields are ignored."""

    missing_message: ClassVar[str] = DetectRequest.missing_message

    source: str = Field(description="The language of the document, or 'auto'.", examples=["en"])
    target: str = Field(description="The language to translate into.", examples=["de"])
    run: str | None = Field(None, description="A run or route for these languages; by default the first one.")
    preserve: PreserveName = PRESERVE_FIELD
    translate_attributes: bool = ATTRIBUTES_FIELD

    @property
    def texts(self) -> list[str]:
        """An empty list: the document is not a field, and has limits of its own."""
        return []


class FileResponse(BaseModel):
    translatedFileUrl: str = Field(description="Where the translation can be downloaded for a while.")  # noqa: N815


class SuggestRequest(ApiRequest):
    """A better translation; unknown fields are ignored."""

    missing_message: ClassVar[str] = DetectRequest.missing_message

    q: str = Field(description="The original text.")
    s: str = Field(description="The suggested translation.")
    source: str
    target: str

    @property
    def texts(self) -> list[str]:
        """The text and its suggested translation."""
        return [self.q, self.s]


class SuggestResponse(BaseModel):
    success: bool


class Detection(BaseModel):
    language: str
    confidence: float = Field(ge=0, le=100)


class LibreTranslateResponse(BaseModel):
    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815


class LanguageInfo(BaseModel):
    code: str
    name: str
    targets: list[str]


class HealthResponse(BaseModel):
    status: Literal["ok"]


# ---- /v1


class LanguageChoice(BaseModel):
    code: str = Field(examples=["eng_Latn"])
    name: str = Field(examples=["English"])


class RunInfo(BaseModel):
    """A served run."""

    name: str
    source: str | None = Field(description="Source language; null: a multilingual run without a default.")
    target: str | None
    languages: list[LanguageChoice] = Field(description="Languages of a multilingual run, for 'source' and 'target'.")
    system: str | None
    checkpoint: str
    version: str = Field(description="Checkpoint and digest of the run's files.", examples=["000500-1f0c93ab"])
    loaded_at: str = Field(description="When this version was loaded (ISO 8601).")
    routes: dict[str, float] = Field(description="Routes with this run, and the share of requests that it answers.")
    parameters: int
    search: dict[str, Any] = Field(description="The default search.")


class RunChoice(ApiRequest):
    """Selects a run, by name or by languages."""

    model_config = ConfigDict(extra="forbid")

    run: str | None = Field(None, description="Name of a run, as in /v1/runs; alternatively give source and target.")
    source: str | None = Field(None, description="Source language, such as en; of a multilingual run also eng_Latn.")
    target: str | None = Field(None, description="Target language.")


class RunSelection(RunChoice):
    """Selects a run, by name or by languages, and its search."""

    search: dict[str, Any] | None = Field(
        None, description="A search, such as {'kind': 'Beam', 'size': 8}.", examples=[{"kind": "Beam", "size": 8}]
    )


def _as_list(texts: str | list[str]) -> list[str]:
    """Return the value of a field that may be one text or a list of texts as a list."""
    return [texts] if isinstance(texts, str) else texts


class _TextRequest(RunSelection):
    """Texts to translate, and how."""

    text: str | list[str]
    features: str | list[str] | None = Field(
        None, description="Features of each text, such as V;PST, for a run that was trained with features."
    )
    prefix: str = Field("", description="Prefix of the translation of the first sentence.")
    split: bool = Field(True, description="Split texts into sentences; otherwise each text is one sentence.")
    alignment: bool = Field(False, description="Return word alignments.")
    warnings: bool = Field(False, description="Return warnings about sentences whose translation is suspicious.")

    @property
    def texts(self) -> list[str]:
        """The texts to translate, their word features (as one text), and the prefix of the translation, if given."""
        others = ("".join(_as_list(self.features or "")), self.prefix)
        return [*_as_list(self.text), *filter(None, others)]

    def sources(self, run: Run) -> list[str]:
        """Return the texts as sources of the run: each with its features (such as V;PST) after a tab, if it has any."""
        features = None if self.features is None else _as_list(self.features)
        return [str(text) for text in run.with_features(_as_list(self.text), features)]


class TranslationRequest(_TextRequest):
    """Texts to translate."""

    n_best: int | None = Field(None, ge=1, description="Number of translations of each sentence.")
    token_scores: bool = Field(False, description="Return log p of every token.")


class StreamRequest(_TextRequest):
    """A text whose translation is streamed."""

    text: str


class LensRequest(RunSelection):
    """A sentence to inspect."""

    text: str = Field(description="One sentence: it is not split.")
    features: str | None = Field(None, description="Features such as V;PST, for a run that was trained with features.")
    translation: str | None = Field(None, description="Inspect this translation instead of searching for one.")
    prefix: str | list[int] = Field("", description="Prefix of the translation: a text, or token ids.")
    alternatives: int = Field(5, ge=1, le=20, description="Number of most probable tokens at every position.")

    @property
    def texts(self) -> list[str]:
        """The sentence, its features, and the translation or its prefix, as far as they are given as text."""
        fields = (self.text, self.features, self.translation, self.prefix)
        return [text for text in fields if text and isinstance(text, str)]


class LensResponse(BaseModel):
    run: str
    forced_tokens: int = Field(description="Number of tokens of the prefix.")
    inspection: dict[str, Any] = Field(description="The JSON document of docs/seeing.md.")


class WalkRequest(RunChoice):
    """A prediction to follow through the model."""

    text: str | None = Field(None, description="One sentence: it is not split. A language model needs none.")
    features: str | None = Field(None, description="Features such as V;PST, for a run that was trained with features.")
    tokens: list[int] = Field([], description="Ids of the target tokens before the one that is predicted.")
    position: int = Field(0, ge=0, description="Source token, from 0, whose way through the encoder is shown.")
    head: int = Field(1, ge=1, description="The attention head that is shown, from 1.")

    @property
    def texts(self) -> list[str]:
        """The sentence and its features."""
        return [text for text in (self.text, self.features) if text]


class WalkResponse(BaseModel):
    run: str
    walk: dict[str, Any] = Field(description="The JSON document of a walk in docs/seeing.md.")


class AlternativesRequest(RunSelection):
    """A position of a translation whose most probable words are requested."""

    text: str = Field(description="One sentence: it is not split.")
    features: str | None = Field(None, description="Features such as V;PST, for a run that was trained with features.")
    prefix: list[int] = Field([], description="Token ids of the translation before the position.")
    count: int = Field(8, ge=1, le=20, description="Largest number of words.")

    @property
    def texts(self) -> list[str]:
        """The sentence, and its features if there are any."""
        return [self.text, *filter(None, [self.features])]


class AlternativeInfo(BaseModel):
    """A word that may follow the prefix."""

    model_config = ConfigDict(from_attributes=True)

    word: str = Field(description="Empty: the translation ends here.")
    token_ids: list[int] = Field(description="Add them to the prefix of /v1/lens to continue with this word.")
    probability: float = Field(description="p(word | prefix, source).")
    text: str = Field(description="The translation with this word, continued by greedy search.")


class AlternativesResponse(BaseModel):
    run: str
    alternatives: list[AlternativeInfo] = Field(description="Most probable first.")


class BPERequest(ApiRequest):
    """A text to learn byte-pair encoding from, merge by merge."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="Words separated by spaces; with `counts`, words with counts such as low=5 lower=2.")
    counts: bool = Field(False, description="Whether the words of `text` have counts.")
    ties: Literal["first", "alphabetical"] = Field("first", description="Which of equally frequent pairs is merged.")
    utf8_bytes: bool = Field(False, description="Start with bytes instead of characters.")
    vocab_size: int | None = Field(None, ge=1, description="Stop at this number of symbols.")
    compression_ratio: float | None = Field(None, ge=1, description="Stop at this compression ratio.")

    @property
    def texts(self) -> list[str]:
        """The text to learn from."""
        return [self.text]


class BPEMerge(BaseModel):
    """A merge, and the text before it."""

    pair: tuple[str, str]
    count: int
    tied: list[tuple[str, str]] = Field(description="Other pairs that are as frequent.")
    num_symbols: int = Field(description="Length of the text after the merge.")
    compression: float = Field(description="Initial length of the text divided by `num_symbols`.")
    pair_counts: list[tuple[str, str, int]] = Field(description="The most frequent pairs before the merge.")
    num_pairs: int = Field(description="Number of different pairs before the merge.")


class BPEResponse(BaseModel):
    words: list[tuple[int, list[str]]] = Field(description="Count and initial symbols of each word.")
    vocabulary: list[str] = Field(description="The initial symbols.")
    merges: list[BPEMerge]
    final_counts: list[tuple[str, str, int]] = Field(description="The most frequent pairs after the last merge.")
    stopped: str = Field(description="Why there are no further merges.")


class TrainingCurve(BaseModel):
    name: str = Field(examples=["training loss", "validation loss", "BLEU"])
    points: list[tuple[float, float]] = Field(description="Step and value; at most 400 points.")


class CurvesResponse(BaseModel):
    run: str
    curves: list[TrainingCurve]


class PositionsResponse(BaseModel):
    run: str
    positions: list[dict[str, Any]] = Field(description="As in `dragoman show positions --json`.")


class ExamplesResponse(BaseModel):
    run: str
    examples: list[str] = Field(description="Short sentences of the last validation, if the run folder has some.")


class HypothesisInfo(BaseModel):
    """A translation of a sentence."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    score: FiniteOrNone = Field(description="log p(y|x).")
    tokens: list[str]
    token_scores: list[FiniteOrNone] | None = None
    alignment: list[tuple[int, int]] | None = Field(None, description="Pairs of source word and target word.")
    finished: bool = Field(description="False: truncated at the length limit.")
    truncated_source: bool = Field(description="Only the beginning of the source was read: it is too long.")


class WarningInfo(BaseModel):
    """What is suspicious about the best translation of a sentence."""

    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="Such as uncovered, language or repetition: see docs/serving.md.")
    message: str = Field(description="A sentence for the reader.")
    source_spans: list[tuple[int, int]] = Field(description="Where in the source: begin and end in characters.")
    target_spans: list[tuple[int, int]] = Field(description="Where in the translation.")


class SentenceTranslation(BaseModel):
    source: str
    hypotheses: list[HypothesisInfo] = Field(description="Best first.")
    space_after: str = Field(description="White space between this translation and that of the next sentence.")
    warnings: list[WarningInfo] | None = Field(None, description="Null unless they were requested.")

    @classmethod
    def from_translation(
        cls, source: str, translation: Translation, space_after: str, warnings: Sequence[TranslationWarning] | None
    ) -> SentenceTranslation:
        """Describe the translation of a source sentence with its alternatives.

        `space_after` is the white space before the next sentence; `warnings` None: not requested.
        """
        n_best = (translation, *translation.alternatives)
        return cls(
            source=source,
            space_after=space_after,
            hypotheses=[HypothesisInfo.model_validate(hypothesis) for hypothesis in n_best],
            warnings=None if warnings is None else [WarningInfo.model_validate(warning) for warning in warnings],
        )


class TextTranslation(BaseModel):
    """A translated text: the best translations of its sentences, joined, and details of each sentence."""

    text: str
    sentences: list[SentenceTranslation]


class TranslationResponse(BaseModel):
    run: str
    translations: list[TextTranslation]


def request_body_schema(model: type[BaseModel], forms: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a request body with the fields of `model`, as JSON, and if `forms` as a form.

    FastAPI does not describe it itself, because the service parses bodies on its own. That forms are accepted is said
    in words: generators of clients need one content type (openapi-python-client 0.27 to 0.29 omit an import).
    """
    body: dict[str, Any] = {"required": True, "content": {JSON: {"schema": model.model_json_schema()}}}
    if forms:
        body["description"] = f"The fields may also be sent as a form: {FORM} or {MULTIPART}."
    return {"requestBody": body}


def upload_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a multipart body with the fields of `model` and a field `file`, an upload."""
    names: dict[str, Any] = {name: {"type": "string"} for name in model.model_fields}
    names["file"] = {"type": "string", "format": "binary"}
    required = [*(name for name, field in model.model_fields.items() if field.is_required()), "file"]
    schema = {"type": "object", "properties": names, "required": required}
    return {"requestBody": {"required": True, "content": {MULTIPART: {"schema": schema}}}}
