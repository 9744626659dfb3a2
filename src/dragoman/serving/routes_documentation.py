"""The documentation of the API: its OpenAPI description, and a page generated from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader


def routes(app: FastAPI, headers: Mapping[str, str]) -> APIRouter:
    """Return the routes /docs (a page) and /spec (OpenAPI), which describe `app`; the page is sent with `headers`."""
    router = APIRouter(tags=["Documentation"])
    environment = Environment(loader=PackageLoader("dragoman.serving", "templates"), autoescape=True)

    @router.get("/spec", response_class=JSONResponse)
    async def spec() -> JSONResponse:
        """The OpenAPI description of this API, as at /openapi.json."""
        return JSONResponse(app.openapi())

    @router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def documentation(request: Request) -> HTMLResponse:
        """A page that describes the API; its examples have the address of the request."""
        description, address = app.openapi(), str(request.base_url).rstrip("/")
        page = environment.get_template("api.html.jinja").render(
            title=description["info"]["title"],
            version=description["info"]["version"],
            groups=_groups(description, address),
        )
        return HTMLResponse(page, headers=dict(headers))

    return router


def _groups(description: dict[str, Any], address: str) -> dict[str, list[dict[str, Any]]]:
    """Return the operations of an OpenAPI description by their first tag, as values for the template of the page.

    An operation is a method of a path, such as POST /translate. `address` is that of the service, for examples.
    """
    schemas = description.get("components", {}).get("schemas", {})
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            contents = operation.get("requestBody", {}).get("content", {})
            responses = operation["responses"].get("200", {}).get("content", {})
            groups.setdefault(operation.get("tags", ["Other"])[0], []).append(
                {
                    "id": f"{method}-{path.strip('/').replace('/', '-') or 'index'}",
                    "method": method.upper(),
                    "path": path,
                    "description": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "content_types": list(contents),
                    "body": operation.get("requestBody", {}).get("description", ""),
                    "fields": _fields(_first_schema(contents), schemas),
                    "answer": _fields(_first_schema(responses), schemas),
                    "example": _example(method, path, contents, address),
                }
            )
    return groups


def _first_schema(contents: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the first content type of a body in an OpenAPI description; an empty one if it has none."""
    content: dict[str, Any] = next(iter(contents.values()), {})
    schema: dict[str, Any] = content.get("schema", {})
    return schema


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a JSON schema of an object, or of the items of an array, for the page.

    Each has name, type, whether it is required, description and default ("" for none or null). `schemas` are those that
    a `$ref` may name.
    """
    schema = _resolve(schema, schemas)
    if schema.get("type") == "array":
        return _fields(schema.get("items", {}), schemas)
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "type": _type(field),
            "required": name in required,
            "description": field.get("description", ""),
            "default": json.dumps(field["default"]) if field.get("default") is not None else "",
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _resolve(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in `schemas` that a `$ref` (#/components/schemas/NAME) names, or `schema` if it is none."""
    reference = schema.get("$ref", "")
    resolved: dict[str, Any] = schemas.get(reference.rpartition("/")[2], {}) if reference else schema
    return resolved


def _type(field: dict[str, Any]) -> str:
    """Return the type of a field, given by its JSON schema, in words such as `string or array of string`."""
    if options := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if field.get("type") == "array":
        return f"array of {_type(field['items'])}" if "items" in field else "array"
    return "binary" if field.get("format") == "binary" else str(field.get("type", "any"))  # binary: an uploaded file


EXAMPLE_BODIES: dict[str, dict[str, Any]] = {
    "/translate": {"q": "The dog sleeps.", "source": "en", "target": "de"},
    "/detect": {"q": "The dog sleeps."},
    "/suggest": {"q": "The dog sleeps.", "s": "Der Hund schläft.", "source": "en", "target": "de"},
    "/v1/translate": {"text": "The dog sleeps.", "alignment": True},
    "/v1/stream": {"text": "The dog sleeps."},
    "/v1/lens": {"text": "The dog sleeps."},
}


def _example(method: str, path: str, contents: dict[str, Any], address: str) -> str:
    """Return a curl command that sends an example request, or '' if there is none.

    A GET request whose path has parameters in braces has no example, and a POST request only if EXAMPLE_BODIES has one.
    """
    if "multipart/form-data" in contents and "application/json" not in contents:
        return f"curl {address}{path} -F file=@page.html -F source=en -F target=de"
    if method == "get":
        return "" if "{" in path else f"curl {address}{path}"
    if path not in EXAMPLE_BODIES:
        return ""
    body = json.dumps(EXAMPLE_BODIES[path], ensure_ascii=False)
    return f"curl {address}{path} --json '{body}'"
