"""What requests and answers hold, as the OpenAPI description shows it."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dragoman.run import Translation
from dragoman.serving.request_parsing import FORM, JSON


class ErrorResponse(BaseModel):
    error: str = Field(description="What was wrong, in a plain sentence.")


class LibreTranslateRequest(BaseModel):
    """As LibreTranslate has it; other fields are left aside."""

    q: str | list[str] = Field(description="A text, or several.")
    source: str = Field(description="The language of the text, or 'auto'.", examples=["en"])
    target: str = Field(description="The language to translate into.", examples=["de"])
    format: Literal["text", "html"] | None = Field(None, description="'text' if not given.")
    alternatives: int | None = Field(None, ge=0, description="How many other translations to give.")
    api_key: str | None = None


class DetectRequest(BaseModel):
    q: str | list[str]
    api_key: str | None = None


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


class RunInfo(BaseModel):
    """A run that is served."""

    name: str
    source: str
    target: str
    system: str | None
    checkpoint: str
    parameters: int
    search: dict[str, Any] = Field(description="How it translates unless told otherwise.")


class RunSelection(BaseModel):
    """Which run is meant, and how it shall search."""

    model_config = ConfigDict(extra="forbid")

    run: str | None = Field(None, description="Its name, as in /v1/runs; or else source and target.")
    source: str | None = None
    target: str | None = None
    search: dict[str, Any] | None = Field(
        None, description="A search, such as {'kind': 'Beam', 'size': 8}.", examples=[{"kind": "Beam", "size": 8}]
    )
    api_key: str | None = None


class _TextRequest(RunSelection):
    prefix: str = Field("", description="How the translation of the first sentence begins.")
    split: bool = Field(True, description="Part texts into sentences? If not, each is translated as one.")
    alignment: bool = False


class TranslationRequest(_TextRequest):
    """Texts to translate, and what to say of them."""

    text: str | list[str]
    n_best: int | None = Field(None, ge=1, description="How many translations of each sentence.")
    token_scores: bool = Field(False, description="log p of every token?")


class StreamRequest(_TextRequest):
    """A text to translate as it is written."""

    text: str


class LensRequest(RunSelection):
    """A sentence to look into."""

    text: str = Field(description="One sentence: it is not parted.")
    translation: str | None = Field(None, description="To be looked into instead of the one that is found.")
    prefix: str | list[int] = Field("", description="How the translation begins: a text, or numbers of tokens.")
    alternatives: int = Field(5, ge=1, le=20, description="How many of the likeliest pieces are shown at every place.")


class LensResponse(BaseModel):
    run: str
    forced_tokens: int = Field(description="How many pieces the translation was told to begin with.")
    inspection: dict[str, Any] = Field(description="The JSON document of docs/seeing.md.")


class TrainingCurve(BaseModel):
    name: str = Field(examples=["training loss", "validation loss", "BLEU"])
    points: list[tuple[float, float]] = Field(description="Step and value; no more than 400 of them.")


class CurvesResponse(BaseModel):
    run: str
    curves: list[TrainingCurve]


class PositionsResponse(BaseModel):
    run: str
    positions: list[dict[str, Any]] = Field(description="As `dragoman show positions --json` has them.")


class ExamplesResponse(BaseModel):
    run: str
    examples: list[str] = Field(description="Short sentences of the run's last validation, if its folder has some.")


class HypothesisInfo(BaseModel):
    """A translation of a sentence, as a run gives it."""

    text: str
    score: float | None = Field(description="log p(y|x).")
    tokens: list[str]
    token_scores: list[float | None] | None = None
    alignment: list[tuple[int, int]] | None = Field(None, description="Links of source word and target word.")
    finished: bool = Field(description="False: cut off at the length limit.")
    truncated_source: bool = Field(description="Only the beginning of the source was read: it is too long.")

    @classmethod
    def from_translation(cls, one: Translation) -> HypothesisInfo:
        scores = None if one.token_scores is None else [_finite(score) for score in one.token_scores]
        return cls(
            text=one.text,
            score=_finite(one.score),
            tokens=one.tokens,
            token_scores=scores,
            alignment=one.alignment,
            finished=one.finished,
            truncated_source=one.truncated_source,
        )


class SentenceTranslation(BaseModel):
    source: str
    hypotheses: list[HypothesisInfo]

    @classmethod
    def from_translation(cls, source: str, found: Translation) -> SentenceTranslation:
        return cls(
            source=source, hypotheses=[HypothesisInfo.from_translation(one) for one in (found, *found.alternatives)]
        )


class TextTranslation(BaseModel):
    """A text: the best translations of its sentences, joined, and all about each of them."""

    text: str
    sentences: list[SentenceTranslation]


class TranslationResponse(BaseModel):
    run: str
    translations: list[TextTranslation]


def _finite(score: float) -> float | None:
    """JSON knows no infinity."""
    return score if math.isfinite(score) else None


def request_body_schema(model: type[BaseModel], forms: bool = False) -> dict[str, Any]:
    """The description of a body that we read ourselves."""
    content = {JSON: {"schema": model.model_json_schema()}}
    if forms:
        names = {name: {"type": "string"} for name in model.model_fields}
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        content[FORM] = {"schema": {"type": "object", "properties": names, "required": required}}
    return {"requestBody": {"required": True, "content": content}}
