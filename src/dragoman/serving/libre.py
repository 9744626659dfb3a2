"""The HTTP interface of LibreTranslate, so that its clients can be used."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from dragoman.serving.batching import Way
from dragoman.serving.markup import Markup
from dragoman.serving.reading import client_of, key_of, read, unless_gone
from dragoman.serving.refusal import RequestError
from dragoman.serving.schemas import (
    Detection,
    DetectRequest,
    Health,
    Language,
    TranslateAnswer,
    TranslateRequest,
    body_of,
)
from dragoman.serving.service import Served, Service


def routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["LibreTranslate"])

    @router.post(
        "/translate",
        responses=errors,
        response_model_exclude_none=True,
        openapi_extra=body_of(TranslateRequest, forms=True),
    )
    async def translate(request: Request) -> TranslateAnswer:
        """Translate a text, or a list of them."""
        service.hurry()
        asked = await read(request, TranslateRequest)
        service.admit(client_of(request), key_of(request, asked.api_key))
        if not asked.q:
            raise RequestError(400, "there is no text: give one as 'q'")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        service.check(texts)
        wanted = asked.alternatives or 0
        if wanted > service.limits.alternatives:
            raise RequestError(400, f"at most {service.limits.alternatives} alternatives can be given, not {wanted:,}")
        guess = None
        if asked.source == "auto":
            language, confidence = service.detected("\n".join(texts), asked.target)
            guess = Detection(language=language, confidence=confidence)
        served = service.between(guess.language if guess else asked.source, asked.target)
        work = _marked(served, texts) if asked.format == "html" else _plain(served, texts, wanted)
        found = await unless_gone(request, work, service.limits.seconds)
        answer = TranslateAnswer(translatedText=[best for best, _ in found])
        if wanted:
            answer.alternatives = [others for _, others in found]
        if guess:
            answer.detectedLanguage = [guess] * len(texts)
        return answer if isinstance(asked.q, list) else _only(answer)

    @router.post("/detect", responses=errors, openapi_extra=body_of(DetectRequest, forms=True))
    async def detect(request: Request) -> list[Detection]:
        """The language of a text, among those that the runs know; the likeliest first."""
        asked = await read(request, DetectRequest)
        service.admit(client_of(request), key_of(request, asked.api_key))
        if not asked.q:
            raise RequestError(400, "there is no text: give one as 'q'")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        service.check(texts)
        found = service.detector("\n".join(texts)) or [service.detected("")]
        return [Detection(language=language, confidence=confidence) for language, confidence in found]

    @router.get("/languages")
    async def languages() -> list[Language]:
        """The languages, and into which each is translated."""
        return [Language(**one) for one in service.languages()]

    @router.get("/health")
    async def health() -> Health:
        """Whether the service is up."""
        return Health(status="ok")

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """What a page of LibreTranslate asks for."""
        first = next(iter(service.runs.values())).pair
        names = {one["code"]: one["name"] for one in service.languages()}
        return {
            "apiKeys": service.keys.asked,
            "keyRequired": service.keys.asked,
            "charLimit": service.limits.characters,
            "frontendTimeout": 500,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "language": {side: {"code": code, "name": names[code]} for side, code in first._asdict().items()},
        }

    return router


async def _plain(served: Served, texts: list[str], alternatives: int) -> list[tuple[str, list[str]]]:
    """The translation of each text, and others: the second best of every sentence, the third best, …"""
    way = Way(served.beam(alternatives + 1) if alternatives else served.run.search)
    cut = [served.split(text) for text in texts]
    results = []
    for text, found in zip(cut, await served.translate(cut, way)):
        ranked = [[one, *one.alternatives] for one in found]
        ways = [
            text.joined([some[min(rank, len(some) - 1)].text for some in ranked], served.pair.target)
            for rank in range(alternatives + 1)
        ]
        results.append((ways[0], list(dict.fromkeys(one for one in ways[1:] if one != ways[0]))))
    return results


async def _marked(served: Served, texts: list[str]) -> list[tuple[str, list[str]]]:
    """The same for HTML, without others."""
    marked = [Markup(text) for text in texts]
    found = iter(await _plain(served, [text for one in marked for text in one.texts], 0))
    return [(one.joined([next(found)[0] for _ in one.texts]), []) for one in marked]


def _only(answer: TranslateAnswer) -> TranslateAnswer:
    """The answer for one text, where lists of one would hold it."""
    return TranslateAnswer.model_construct(**{name: value[0] for name, value in answer if value is not None})
