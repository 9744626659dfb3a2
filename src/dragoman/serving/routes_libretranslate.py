"""The HTTP API of LibreTranslate, for its clients."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from dragoman.serving import schemas
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_parsing import RequestError, cancel_on_disconnect
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service

RequestType = TypeVar("RequestType", bound=schemas.DetectRequest)
UNTRANSLATED_ELEMENTS = "script|style|code|pre|kbd|samp|textarea|svg|math"
HTML_TAG = re.compile(
    rf"<!--.*?-->|<({UNTRANSLATED_ELEMENTS})\b[^<>]*>.*?</\1\s*>|</?[a-z](?:\"[^\"]*\"|'[^']*'|[^\"'<>])*>|<[!?][^<>]*>",
    re.S | re.I,
)


def routes(service: Service) -> APIRouter:
    """Return the routes of LibreTranslate's API: translate, detect, languages, health and frontend/settings."""
    router = APIRouter(tags=["LibreTranslate"], responses=schemas.ERROR_RESPONSES)

    async def accept(request: Request, model: type[RequestType]) -> RequestType:
        """Parse a request as `model`, and reject it without text, without a valid API key or above the limits."""
        fields = await service.accept(request, model)
        if not fields.q:
            raise RequestError(400, "there is no text: give one as 'q'")
        return fields

    @router.post(
        "/translate",
        response_model_exclude_none=True,
        openapi_extra=schemas.request_body_schema(schemas.LibreTranslateRequest, forms=True),
    )
    async def translate(request: Request) -> schemas.LibreTranslateResponse:
        """Translate a text or a list of texts, by the first run for the language pair."""
        service.reject_if_full()
        fields = await accept(request, schemas.LibreTranslateRequest)
        texts = fields.texts
        alternatives, limit = fields.alternatives or 0, service.limits.max_alternatives
        if alternatives > limit:
            raise RequestError(400, f"at most {limit} alternatives can be requested, not {alternatives:,}")
        detected = None  # the language of the text, if the client does not give it
        if fields.source == "auto":
            language, confidence = service.detect_language("\n".join(texts), fields.target)
            detected = schemas.Detection(language=language, confidence=confidence)
        served = service.run_for_languages(detected.language if detected else fields.source, fields.target)
        is_html = fields.format == "html"
        translating = _translate_html(served, texts) if is_html else _translate(served, texts, alternatives)
        results = await cancel_on_disconnect(request, translating, service.limits.timeout)
        response = schemas.LibreTranslateResponse(translatedText=[best for best, _ in results])
        if alternatives:
            response.alternatives = [others for _, others in results]
        if detected:
            response.detectedLanguage = [detected] * len(texts)
        return response if isinstance(fields.q, list) else _for_single_text(response)

    @router.post("/detect", openapi_extra=schemas.request_body_schema(schemas.DetectRequest, forms=True))
    async def detect(request: Request) -> list[schemas.Detection]:
        """Detect the language of a text among the languages of the runs, most probable first."""
        fields = await accept(request, schemas.DetectRequest)
        # if nothing can be detected: the only source language of the runs, or an error
        languages = service.detector("\n".join(fields.texts)) or [service.detect_language("")]
        return [schemas.Detection(language=language, confidence=confidence) for language, confidence in languages]

    @router.get("/languages")
    async def languages() -> list[schemas.LanguageInfo]:
        """List the languages and the languages that each is translated into."""
        return service.languages()

    @router.get("/health")
    async def health() -> schemas.HealthResponse:
        """Whether the service is up."""
        return schemas.HealthResponse(status="ok")

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Settings that LibreTranslate's web page requests."""
        pair = next(iter(service.runs.values())).with_any_languages().pair
        languages = {} if pair is None else pair._asdict()
        names = {language.code: language.name for language in service.languages()}
        return {
            "apiKeys": service.keys.required,
            "keyRequired": service.keys.required,
            "charLimit": service.limits.max_characters,
            "frontendTimeout": 500,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "language": {side: {"code": code, "name": names.get(code, code)} for side, code in languages.items()},
        }

    return router


async def _translate(served: ServedRun, texts: list[str], alternatives: int) -> list[tuple[str, list[str]]]:
    """Return the translation of each text by a run, and up to `alternatives` others without duplicates.

    Texts are split into sentences, and their translations joined. The first alternative joins the second-best
    translations of all sentences, the next one the third-best, and so on.
    """
    options = DecodeOptions(served.beam_search(alternatives + 1) if alternatives else served.run.default_search)
    split_texts = [served.split(text) for text in texts]
    results = []
    for text, translations in zip(split_texts, await served.translate(split_texts, options)):
        n_best = [[translation, *translation.alternatives] for translation in translations]
        best, *others = (
            text.join([ranked[min(rank, len(ranked) - 1)].text for ranked in n_best], served.target_language)
            for rank in range(alternatives + 1)
        )
        results.append((best, [other for other in dict.fromkeys(others) if other != best]))
    return results


async def _translate_html(served: ServedRun, texts: list[str]) -> list[tuple[str, list[str]]]:
    """Translate the text between the tags of HTML documents; return pairs (document, no alternatives)."""
    documents = [HtmlText(text) for text in texts]
    between_tags = [text for document in documents for text in document.texts]
    results = iter(await _translate(served, between_tags, alternatives=0))
    return [(document.join([next(results)[0] for _ in document.texts]), []) for document in documents]


def _for_single_text(response: schemas.LibreTranslateResponse) -> schemas.LibreTranslateResponse:
    """Replace the lists in the response for a single text, which was not sent as a list, by their only items."""
    return schemas.LibreTranslateResponse.model_construct(
        **{name: value[0] for name, value in response if value is not None}
    )


class HtmlText:
    """HTML split into translatable texts (unescaped) and the markup after each of them."""

    def __init__(self, source: str) -> None:
        """Split the HTML document `source` into texts and the tags between them."""
        tags = list(HTML_TAG.finditer(source))
        begins, ends = [0, *(tag.end() for tag in tags)], [*(tag.start() for tag in tags), len(source)]
        self.texts = [html.unescape(source[begin:end]) for begin, end in zip(begins, ends)]
        self.markup = [*(tag.group() for tag in tags), ""]

    def join(self, translations: Sequence[str]) -> str:
        """Return the HTML with the translations of `texts`."""
        return "".join(html.escape(text, quote=False) + markup for text, markup in zip(translations, self.markup))
