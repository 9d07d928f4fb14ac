# SPDX-License-Identifier: Apache-2.0
"""The page at /, in a real browser: it streams, shows figures and errors, stops, takes a key, loads nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from support.fake_engine import FakeEngine, served_by
from support.http_server import LocalServer, running
from support.serving import until
from xlstm_hip._core.extras import is_installed

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason=f"needs a browser: {', '.join(BROWSERS)}"),
    pytest.mark.skipif(not is_installed("playwright"), reason="needs playwright"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without a sandbox, which root may not have: the page is our own.
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(step_seconds=0.01)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    opened = context.new_page()
    opened.problems = []
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.asked = []
    opened.on("request", lambda request: opened.asked.append(request.url))
    yield opened
    context.close()


def send(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


def ended(page: Any) -> None:
    page.wait_for_selector("#stop:disabled")
    page.wait_for_selector("#send:enabled")


def answers(page: Any) -> list[str]:
    return page.locator(".assistant").all_text_contents()


def open_at(page: Any, server: LocalServer) -> None:
    page.goto(server.url)
    until(lambda: page.text_content("#server").startswith("ready: "))


def test_a_conversation(page: Any, engine: FakeEngine) -> None:
    with running(served_by(engine)) as server:
        open_at(page, server)
        assert (
            page.text_content("#model") == "fake" and page.text_content("#server") == "ready: 0 of 1000 slots, queue 0"
        )
        page.click("summary")
        page.fill("#most", "30")
        page.fill("#temperature", "0")
        page.fill("#system", "Be kind.")
        send(page, "<b>Hello</b>")
        until(lambda: len("".join(answers(page))) > 3)
        assert len(answers(page)[0]) < 30  # it streams
        ended(page)
        assert answers(page) == ["abcdefghijklmnopqrstuvwxyzabcd"]
        assert page.locator(".user").all_text_contents() == ["<b>Hello</b>"]  # as text
        figures = page.text_content("#figures")
        assert "first token after " in figures and " tokens/s, 30 tokens" in figures
        send(page, "And why?")
        until(lambda: len(answers(page)) == 2)
        ended(page)
        told = bytes(engine.requests[-1].tokens).decode()
        assert told == (
            "\0system: Be kind.\nuser: <b>Hello</b>\nassistant: abcdefghijklmnopqrstuvwxyzabcd\n"
            "user: And why?\nassistant:"
        )
        assert engine.requests[-1].params.temperature == 0
        page.click("#clear")
        assert answers(page) == []
        send(page, "New")
        page.wait_for_selector(".assistant")
        ended(page)
        assert b"Hello" not in bytes(engine.requests[-1].tokens)
        assert page.problems == [] and all(url.startswith((server.url, "data:")) for url in page.asked)


def test_stop(page: Any, engine: FakeEngine) -> None:
    """The engine's request ends, what was written stays."""
    with running(served_by(engine)) as server:
        open_at(page, server)
        page.click("summary")
        page.fill("#most", "5000")
        send(page, "Hello")
        until(lambda: len("".join(answers(page))) > 3)
        page.click("#stop")
        ended(page)
        until(lambda: engine.running == 0 and engine.cancelled)
        assert 3 < len(answers(page)[0]) < 5000 and page.locator(".error").count() == 0
        page.reload()
        open_at(page, server)
        send(page, "Hello")
        page.wait_for_selector(".assistant")
        page.close()  # who closes the tab leaves, too
        until(lambda: engine.running == 0)


def test_a_key(page: Any, engine: FakeEngine) -> None:
    with running(served_by(engine), keys=("right",)) as server:
        page.goto(server.url)
        until(lambda: "API key" in page.text_content("#server"))
        send(page, "Hello")
        page.wait_for_selector(".error")
        page.click("summary")
        page.fill("#key", "right")
        page.press("#key", "Tab")
        until(lambda: page.text_content("#server").startswith("ready: "))
        send(page, "Hello")
        page.wait_for_selector(".assistant")
        page.reload()  # a tab keeps it
        open_at(page, server)


def test_errors_are_shown(page: Any, engine: FakeEngine) -> None:
    with running(served_by(engine)) as server:
        open_at(page, server)
        page.click("summary")
        page.fill("#most", "99999999")
        send(page, "Hello")
        page.wait_for_selector(".error")
        assert page.text_content(".error").startswith("max_tokens: expected 1 to 32768")
        page.fill("#most", "40")
        engine.end.append("error")
        send(page, "Hello")
        until(lambda: page.locator(".error").count() == 2)
        assert "the engine could not answer" in page.locator(".error").nth(1).text_content()


def test_without_a_template(page: Any, engine: FakeEngine) -> None:
    """It writes on after a text."""
    with running(served_by(engine, template=False)) as server:
        open_at(page, server)
        page.click("summary")
        page.fill("#most", "20")
        send(page, "In the beginning")
        page.wait_for_selector(".assistant")
        ended(page)
        assert bytes(engine.requests[-1].tokens) == b"\0In the beginning"


@pytest.mark.parametrize(("scheme", "background"), [("dark", "rgb(21, 24, 28)"), ("light", "rgb(255, 255, 255)")])
def test_dark_and_light(scheme: str, background: str, page: Any, engine: FakeEngine) -> None:
    with running(served_by(engine)) as server:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 400, "height": 700})
        open_at(page, server)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
