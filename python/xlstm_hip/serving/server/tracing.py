# SPDX-License-Identifier: Apache-2.0
"""A span of OpenTelemetry for each request, as part of its client's trace. Needs the packages of the extra `otel`."""

from __future__ import annotations

import time
from typing import Any

from ..._core.extras import not_installed, optional_module
from .logs import Record

NEEDED_BY = "--otel"


def _module(name: str) -> Any:
    """Of opentelemetry, of which other packages may have brought the interface alone."""
    try:
        return optional_module(f"opentelemetry.{name}", NEEDED_BY)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise not_installed("opentelemetry", NEEDED_BY) from None


class Spans:
    """
    exporter   where they go; None: by OTLP over HTTP to where the variables of OpenTelemetry say
    """

    def __init__(self, exporter: Any = None) -> None:
        trace, sdk, export = _module("trace"), _module("sdk.trace"), _module("sdk.trace.export")
        if exporter is None:
            exporter = _module("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
        resource = _module("sdk.resources").Resource.create({"service.name": "xlstm_hip"})  # OTEL_SERVICE_NAME first
        self._provider = sdk.TracerProvider(resource=resource)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("xlstm_hip.serving")
        self._context = _module("trace.propagation.tracecontext").TraceContextTextMapPropagator()
        self._server, self._failed = trace.SpanKind.SERVER, trace.Status(trace.StatusCode.ERROR)

    def ended(self, record: Record, seconds: float) -> None:
        """A request was answered. Its span is made now that all is known of it."""
        end = time.time_ns()
        attributes: dict[str, Any] = {
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "xlstm_hip.request_id": record.id,
            "xlstm_hip.outcome": record.outcome,
        }
        if record.prompt_tokens:
            attributes |= {
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.new_tokens,
                "xlstm_hip.cached_tokens": record.cached_tokens,
            }
        if record.first_seconds is not None:
            attributes["xlstm_hip.time_to_first_token"] = record.first_seconds
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            context=self._context.extract({"traceparent": record.trace} if record.trace else {}),
            kind=self._server,
            attributes=attributes,
            start_time=end - int(seconds * 1e9),
        )
        if record.status >= 500 or record.outcome == "failed":
            span.set_status(self._failed)
        span.end(end)

    def close(self) -> None:
        """Sends what was not sent yet."""
        self._provider.shutdown()
