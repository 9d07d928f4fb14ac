# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes, and what an error looks like."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as AnyHTTPException

from ..._version import __version__
from . import chat, completions
from .bodies import read_json
from .envelope import ID_HEADER, Envelope
from .errors import ApiError, wrong
from .generate import generate
from .openai_types import ApiBody, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody, parse, schema_of
from .sampling_fields import check_length
from .served import Served
from .state import ServerState, record_of
from .tracing import Spans

TokensBody = TypeVar("TokensBody", TokenizeBody, DetokenizeBody)

# The page loads nothing from elsewhere and talks to this server alone.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
NOT_SERVED = ("embeddings", "images", "audio", "moderations", "responses", "files", "batches", "fine_tuning",
              "assistants", "threads", "vector_stores", "uploads", "realtime", "videos", "rerank", "score")  # fmt: skip


def create_app(
    state: ServerState, cors_origins: Sequence[str] = (), spans: Spans | None = None, writes_id: bool = True
) -> FastAPI:
    """writes_id    whether answers get the header X-Request-Id here"""
    app = FastAPI(title="xlstm_hip", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = state
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(AnyHTTPException, _http_error)
    watchers = [state.metrics.ended] if spans is None else [state.metrics.ended, spans.ended]
    app.add_middleware(Envelope, ended=watchers, writes_id=writes_id)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[ID_HEADER, "Retry-After"],
        )
    _add_api(app, state)
    _add_operations(app, state)
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    record = record_of(request)
    record.code, record.param = error.code, error.param
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Of the router: no such path, or not with this method."""
    assert isinstance(error, AnyHTTPException)
    text = {404: "no such path", 405: f"expected another method than {request.method}"}.get(error.status_code)
    codes = {404: "not_found", 405: "method_not_allowed"}
    return ApiError(
        error.status_code, text or str(error.detail), code=codes.get(error.status_code), headers=error.headers
    ).response()


def _body(kind: type[ApiBody]) -> dict[str, Any]:
    """For /openapi.json: the body is parsed here, whose errors have OpenAI's form, and not by FastAPI."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema_of(kind)}}}}


def _add_api(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/completions", openapi_extra=_body(CompletionBody))
    async def _completions(request: Request) -> Response:
        parts = completions.prompts_of, completions.CompletionAnswer
        return await generate(state, request, CompletionBody, "cmpl", *parts)

    @app.post("/v1/chat/completions", openapi_extra=_body(ChatBody))
    async def _chat(request: Request) -> Response:
        return await generate(state, request, ChatBody, "chatcmpl", chat.prompts_of, chat.ChatAnswer)

    @app.get("/v1/models")
    async def _models(request: Request) -> Response:
        state.keys.check(request)
        return JSONResponse({"object": "list", "data": [state.ready().card(state.limits.max_prompt_tokens)]})

    @app.get("/v1/models/{name:path}")
    async def _model(request: Request, name: str) -> Response:
        state.keys.check(request)
        served = state.ready()
        served.check_name(name)
        return JSONResponse(served.card(state.limits.max_prompt_tokens))

    async def read_body(request: Request, kind: type[TokensBody]) -> tuple[Served, TokensBody]:
        """Of a request that does not go through the engine, and may leave out the model."""
        state.keys.check(request)
        served = state.ready()
        fields = await read_json(request, state.limits.max_body_bytes, state.limits.body_seconds)
        body = parse(kind, fields, state.lenient)
        if body.model is not None:
            served.check_name(body.model)
        return served, body

    @app.post("/tokenize", openapi_extra=_body(TokenizeBody))
    async def _tokenize(request: Request) -> Response:
        served, body = await read_body(request, TokenizeBody)
        if (body.prompt is None) == (body.messages is None):
            raise wrong("prompt", "expected either prompt or messages")
        if body.prompt is not None:
            if body.add_generation_prompt is not None:
                raise wrong("add_generation_prompt", "expected messages with it")
            special = body.add_special_tokens is not False
            tokens = await asyncio.to_thread(served.tokens_of, body.prompt, special)
        else:
            if body.add_special_tokens is not None:
                raise wrong("add_special_tokens", "expected a prompt with it: the chat template writes special tokens")
            assert body.messages is not None
            begin = body.add_generation_prompt is not False
            tokens = await asyncio.to_thread(served.chat_tokens, body.messages, begin)
        most = state.limits.max_prompt_tokens
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": most})

    @app.post("/detokenize", openapi_extra=_body(DetokenizeBody))
    async def _detokenize(request: Request) -> Response:
        served, body = await read_body(request, DetokenizeBody)
        check_length(body.tokens, "tokens", state.limits)
        served.check_tokens("tokens", body.tokens)
        return JSONResponse({"prompt": await asyncio.to_thread(served.tokenizer.decode, body.tokens)})

    @app.api_route("/v1/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
    async def _others(request: Request, rest: str) -> Response:
        state.keys.check(request)
        kind = rest.partition("/")[0]
        if f"/v1/{rest}" in ("/v1/completions", "/v1/chat/completions") or kind == "models":
            raise HTTPException(405)
        if kind not in NOT_SERVED:
            raise HTTPException(404)
        text = f"{kind}: not supported: this server has /v1/completions, /v1/chat/completions and /v1/models"
        raise ApiError(404, text, code="unsupported_endpoint")


def _add_operations(app: FastAPI, state: ServerState) -> None:
    @app.get("/health")
    async def _health() -> Response:
        """Whether the process should go on: not with an engine that has failed, which only a restart repairs."""
        status = state.status()
        return JSONResponse({"status": "failed" if status == "failed" else "ok"}, 503 if status == "failed" else 200)

    @app.get("/ready")
    async def _ready() -> Response:
        """Whether requests will be answered."""
        status, by_replica = state.status(), state.snapshots()
        snapshots = by_replica.values()
        load = {} if not snapshots else {
            "running": sum(x.running for x in snapshots),
            "waiting": sum(x.waiting for x in snapshots),
            "slots": sum(x.slots_total for x in snapshots),
        }  # fmt: skip
        if load and "" not in by_replica:
            load["replicas"] = len(by_replica)
        return JSONResponse({"status": status} | load, 200 if status == "ready" else 503)

    @app.get("/metrics")
    async def _metrics() -> Response:
        return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version")
    async def _version() -> Response:
        return JSONResponse({"version": __version__})

    page = files(__package__).joinpath("page.html").read_text("utf-8")

    @app.get("/", include_in_schema=False)
    async def _page() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY, "X-Frame-Options": "DENY"})
