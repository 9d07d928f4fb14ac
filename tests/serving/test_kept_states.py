# SPDX-License-Identifier: Apache-2.0
"""States that outlast their request, in an engine: shared beginnings are read once, conversations and sessions go on,
in host memory and in files, with the same bits; files that are damaged or cannot be written concern one session.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from support.serving import Answers, ask, engine_of, paused, prompt_of, serving_model, until
from xlstm_hip.models import states, xLSTMLarge
from xlstm_hip.serving import Engine, Request, SamplingParams, narrow, swap

CHUNK = 16
pytestmark = pytest.mark.usefixtures("lookahead")
SAMPLED = SamplingParams(max_tokens=10, seed=3, ignore_eos=True, logprobs=2)
SYSTEM = prompt_of(5 * CHUNK, 1)


@pytest.fixture(scope="module")
def model() -> xLSTMLarge:
    return serving_model()


def one_state(model: xLSTMLarge) -> int:
    with engine_of(model) as engine:
        return engine._stepper.slots.row_bytes


def held_up(name: str, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Calls of swap's save_state or load_state wait for this event."""
    go_on, call = threading.Event(), getattr(swap, name)

    def late(*arguments: Any, **named: Any) -> Any:
        assert go_on.wait(30)
        return call(*arguments, **named)

    monkeypatch.setattr(swap, name, late)
    return go_on


# ---- the prefix cache


@pytest.mark.parametrize("device", ["host", "device"])
def test_a_shared_beginning_is_read_once_with_the_same_bits(model: xLSTMLarge, device: str) -> None:
    """Also where all come at the same time, and where one prompt comes many times."""
    prompts = [SYSTEM + prompt_of(7, n) for n in (2, 3, 4)] + [SYSTEM + prompt_of(7, 2)] * 4
    requests = [Request(str(n), prompt, SAMPLED) for n, prompt in enumerate(prompts)]
    with engine_of(model, prefix_cache_bytes=0) as engine:
        without = ask(engine, *requests)
        assert engine.metrics().tokens_prefilled == 7 * 87 and engine.metrics().prefix_cache_states == 0
    with engine_of(model, slots=3, prefix_cache_device=device) as engine:
        answers = Answers()
        with paused(engine):
            for request in requests:
                engine.submit(request, answers)
        lasts = answers.wait(*(request.id for request in requests))
        metrics = engine.metrics()
    assert metrics.tokens_prefilled == 1 + 80 + 3 * 7  # of the paused one, the beginning, three endings
    assert metrics.prefix_cache_tokens_saved == 7 * 87 - 80 - 3 * 7 == sum(last.cached_tokens for last in lasts)
    for request in requests:
        assert answers.logprobs(request.id) == without.logprobs(request.id)
        assert answers.tokens(request.id) == without.tokens(request.id)
    assert [last.cached_tokens for last in lasts[3:]] == [87] * 4 and lasts[0].prompt_tokens == 87


def test_salts_keep_states_apart(model: xLSTMLarge) -> None:
    """Prompts and answers; the same bits all the same."""
    with engine_of(model) as engine:
        for salt, cached in (("", 0), ("", 80), ("a", 0), ("a", 80), ("b", 0)):
            answers = ask(engine, Request("x", SYSTEM, SAMPLED, cache_salt=salt))
            assert answers.outputs["x"][-1].cached_tokens == cached
        text = [*SYSTEM, *answers.tokens("x"), 7]
        for salt, cached in (("", 89), ("b", 89), ("c", 0)):
            last = ask(engine, Request("x", text, SAMPLED, cache_salt=salt)).outputs["x"][-1]
            assert last.cached_tokens == cached


def test_a_conversation_goes_on_from_its_answer(model: xLSTMLarge) -> None:
    for keeps in (True, False):
        with engine_of(model, cache_answers=keeps) as engine:
            first = ask(engine, Request("a", SYSTEM[:20], SAMPLED)).tokens("a")
            second = SYSTEM[:20] + first + prompt_of(6, 9)
            (last,) = ask(engine, Request("b", second, SAMPLED)).wait("b")
            assert last.cached_tokens == (29 if keeps else 20)  # the answer's last token has not been read
            assert engine.metrics().prefix_cache_hits == 1 and engine.metrics().prefix_cache_misses == 1


def test_a_conversation_has_the_answer_that_its_text_has() -> None:
    """In float64, where reading by step and in chunks differ by less than a token."""
    model = serving_model(torch.float64)
    with engine_of(model) as engine, engine_of(model, prefix_cache_bytes=0) as plain:
        text = prompt_of(20)
        for turn in range(4):
            answers, want = ask(engine, Request("a", text, SAMPLED)), ask(plain, Request("a", text, SAMPLED))
            assert answers.tokens("a") == want.tokens("a")
            assert turn == 0 or answers.outputs["a"][-1].cached_tokens == len(text) - 6
            text += answers.tokens("a") + prompt_of(5, turn)


def test_a_small_cache_stays_small(model: xLSTMLarge) -> None:
    limit = 4 * one_state(model)
    with engine_of(model, prefix_cache_bytes=limit) as engine:
        for n in range(6):
            ask(engine, Request("a", prompt_of(50, n), SAMPLED))
            assert 0 < engine.metrics().prefix_cache_bytes <= limit


def test_an_out_of_memory_of_the_cache_makes_it_smaller_and_harms_nobody(
    model: xLSTMLarge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = one_state(model)
    with engine_of(model) as engine:
        keep, stepper, left = engine._stepper.slots.keep, engine._stepper, [4]

        def failing(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise torch.OutOfMemoryError("planted")
            return keep(*arguments, **named)

        monkeypatch.setattr(stepper.slots, "keep", failing)
        assert len(ask(engine, Request("a", SYSTEM, SAMPLED)).tokens("a")) == 10
        assert engine.healthy and engine.metrics().out_of_memory == 1 and 0 < engine.metrics().prefix_cache_states <= 2
        want = ask(engine, Request("a", prompt_of(200), SAMPLED)).tokens("a")
        assert 0 < engine.metrics().prefix_cache_bytes <= engine.metrics().prefix_cache_limit < 3 * 6000
        assert ask(engine, Request("a", prompt_of(200), SAMPLED)).tokens("a") == want
        assert stepper.scheduler.slots == 4 and "prefix_cache_bytes: out of memory; " in caplog.text
        before = engine.metrics().prefix_cache_limit
        for n in range(4):  # 256 steps without another one, and then some
            ask(engine, Request("a", [5 + n], SamplingParams(200, ignore_eos=True)))
        assert engine.metrics().prefix_cache_limit - before in (3 * size, 4 * size)


# ---- sessions


def turn(engine: Engine, text: list[int], session: str = "s") -> tuple[list[int], int]:
    """One more message and its answer; how many tokens were not read again."""
    text = text + prompt_of(21, len(text))
    answers = ask(engine, Request("turn", text, SAMPLED, session=session))
    return text + answers.tokens("turn"), answers.outputs["turn"][-1].cached_tokens


@pytest.mark.parametrize("where", ["host", "folder", "folder of an earlier engine"])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_session_goes_on_with_the_same_bits(where: str, state_dtype: str, tmp_path: Path) -> None:
    """Wherever its state was: as if it had stayed in the prefix cache, in the form in which it left the slot."""
    model = serving_model(inference_state_dtype=state_dtype)
    with engine_of(model) as engine:
        want, _ = turn(engine, turn(engine, [], "a")[0], "a")
    options: dict[str, Any] = {"prefix_cache_bytes": 0}
    if where != "host":
        options |= {"swap_folder": tmp_path / "states"}
    if where == "folder":
        options |= {"swap_bytes": 0}
    engine = engine_of(model, **options).start()
    text, cached = turn(engine, [])
    assert cached == 0
    if where == "folder of an earlier engine":
        engine.close()
        assert len(list((tmp_path / "states").iterdir())) == 1 and engine.metrics().swap_folder_bytes > 0
        engine = engine_of(model, **options).start()
    text, cached = turn(engine, text)
    assert text == want and cached == 30 and engine.metrics().swapped_in == 1
    # Another text in this session's name is read from its beginning.
    assert turn(engine, prompt_of(40, 77))[1] == 0
    engine.close()
    assert engine.metrics().swap_failures == 0


def test_a_state_that_was_being_written_is_found_after_it_was(
    model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that came while the file was written is not told to wait, and begins when the writing is over."""
    may_write = held_up("save_state", monkeypatch)
    with engine_of(model, prefix_cache_bytes=0, swap_bytes=0, swap_folder=tmp_path) as engine:
        text, _ = turn(engine, [])
        store = engine._stepper.swap
        assert store.ready("s")
        may_write.set()
        store._thread.submit(lambda: None).result(30)
        assert engine.metrics().swap_folder_bytes > 0
        found = store.find("s")
        assert found is not None and len(found.tokens) == len(text) - 1


def test_sessions_move_to_files_where_memory_is_full(model: xLSTMLarge, tmp_path: Path) -> None:
    size = one_state(model)
    options = {"prefix_cache_bytes": 0, "swap_bytes": 3 * size, "swap_folder": tmp_path}
    with engine_of(model, **options) as engine:
        texts = {f"s{n}": turn(engine, [n], f"s{n}")[0] for n in range(8)}
        assert engine.metrics().swap_host_bytes <= 8 * size
        for session, text in texts.items():
            assert turn(engine, text, session)[1] == len(text) - 1
    engine._stepper.swap.close()
    assert engine.metrics().swap_host_bytes == 0 and engine.metrics().swap_failures == 0
    assert len(list(tmp_path.iterdir())) == 8


def test_without_a_folder_what_has_no_room_is_dropped(model: xLSTMLarge, caplog: pytest.LogCaptureFixture) -> None:
    with engine_of(model, prefix_cache_bytes=0, swap_bytes=int(2.7 * one_state(model))) as engine:
        texts = [turn(engine, [n], f"s{n}")[0] for n in range(3)]
        cached = [turn(engine, text, f"s{n}")[1] for n, text in reversed(list(enumerate(texts)))]
        assert cached == [31, 31, 0]
        assert engine.metrics().swap_failures == 2 and "swap_bytes: no room for the state" in caplog.text


def test_a_full_folder_drops_the_oldest_files(model: xLSTMLarge, tmp_path: Path) -> None:
    size = one_state(model)
    options = {"prefix_cache_bytes": 0, "swap_bytes": 0, "swap_folder": tmp_path, "swap_folder_bytes": 3 * size}
    with engine_of(model, **options) as engine:
        for n in range(5):
            turn(engine, [n], f"s{n}")
    left = list(tmp_path.iterdir())
    assert 1 <= len(left) <= 2 and sum(file.stat().st_size for file in left) <= 3 * size
    with engine_of(model, **options) as engine:
        assert engine.metrics().swap_folder_bytes == sum(file.stat().st_size for file in left)


def test_a_full_disk_concerns_one_session(
    model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"prefix_cache_bytes": 0, "swap_bytes": 0, "swap_folder": tmp_path}
    with engine_of(model, **options) as engine:
        want = {id: turn(engine, turn(engine, [], id)[0], id)[0] for id in ("full", "other")}
    for file in tmp_path.iterdir():
        file.unlink()
    save = states.save_file

    def full(tensors: Any, file: Path, metadata: dict[str, str]) -> None:
        if '"full"' in metadata["notes"]:
            file.write_bytes(b"part")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, file, metadata)

    with engine_of(model, **options) as engine:
        monkeypatch.setattr(states, "save_file", full)
        text, other = turn(engine, [], "full")[0], turn(engine, [], "other")[0]
        engine._stepper.swap._thread.submit(int).result()  # all was written
        assert [file.name for file in tmp_path.iterdir()] == [engine._stepper.swap._name("other")]
        text, cached = turn(engine, text, "full")
        other, other_cached = turn(engine, other, "other")
        assert (text, other) == (want["full"], want["other"]) or cached == 0
        assert cached == 0 and other_cached == 30 and other == want["other"] and engine.healthy
        assert "was not written and will be read again: [Errno 28] No space left on device" in caplog.text
        engine._stepper.swap._thread.submit(int).result()
        assert engine.metrics().swap_failures == 2


@pytest.mark.parametrize("damage", ["a bit", "cut off", "another model's", "gone", "another session's"])
def test_a_damaged_file_is_not_used(
    model: xLSTMLarge, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    options = {"prefix_cache_bytes": 0, "swap_folder": tmp_path}
    with engine_of(model, **options) as engine:
        text, _ = turn(engine, [])
        name = engine._stepper.swap._name("s")
    file, weights = tmp_path / name, model
    contents = file.read_bytes()
    if damage == "a bit":
        file.write_bytes(contents[:-99] + bytes([contents[-99] ^ 1]) + contents[-98:])
    elif damage == "cut off":
        file.write_bytes(contents[:-1])
    elif damage == "another model's":
        weights = serving_model(seed=5)
    engine = engine_of(weights, **options).start()
    if damage == "gone":
        file.unlink()
    if damage == "another session's":
        (tmp_path / engine._stepper.swap._name("t")).write_bytes(contents)
        engine._stepper.swap._files[engine._stepper.swap._name("t")] = len(contents)
    text, cached = turn(engine, text, "t" if damage == "another session's" else "s")
    assert cached == 0 and engine.metrics().swap_failures == 1 and engine.healthy
    assert "the state of a session was not read, its text will be" in caplog.text
    engine.close()


def test_a_request_that_waits_for_its_file_can_be_cancelled(
    model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"prefix_cache_bytes": 0, "swap_bytes": 0, "swap_folder": tmp_path}
    with engine_of(model, **options) as engine:
        text, _ = turn(engine, [])
    go_on = held_up("load_state", monkeypatch)
    with engine_of(model, **options) as engine:
        answers = Answers()
        engine.submit(Request("waits", text, SAMPLED, session="s"), answers)
        engine.submit(Request("late", text, SAMPLED, session="s", deadline=0.1), answers)
        assert len(ask(engine, Request("other", text, SAMPLED)).tokens("other")) == 10  # others do not wait
        assert answers.wait("late")[0].finish_reason == "deadline"
        engine.cancel("waits")
        assert answers.wait("waits")[0].finish_reason == "cancelled"
        go_on.set()
        engine._stepper.swap._thread.submit(int).result()
        assert turn(engine, text)[1] == 30 and engine.metrics().slots_used == 0


def files_of_sessions(model: xLSTMLarge, count: int, **options: Any) -> dict[str, list[int]]:
    """Sessions whose states are in files, and their texts."""
    with engine_of(model, **options) as engine:
        texts = {}
        for n in range(count):
            texts[f"s{n}"] = turn(engine, [3 + n], f"s{n}")[0]
            engine._stepper.swap._thread.submit(int).result()  # it was written
        return texts


def test_what_was_read_for_requests_that_are_over_is_not_kept(
    model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They left while the file was being read: many such could fill the memory."""
    options: dict[str, Any] = {"prefix_cache_bytes": 0, "swap_bytes": 0, "swap_folder": tmp_path}
    texts = files_of_sessions(model, 6, **options)
    go_on = held_up("load_state", monkeypatch)
    with engine_of(model, **options) as engine:
        answers = Answers()
        for session, text in texts.items():
            engine.submit(Request(session, text, SAMPLED, session=session), answers)
            ask(engine, Request("other", [5], SAMPLED))  # it was taken in
            engine.cancel(session)
        answers.wait(*texts)
        go_on.set()
        engine._stepper.swap._thread.submit(int).result()
        assert engine.metrics().swap_host_bytes == 0
        assert turn(engine, texts["s0"], "s0")[1] == len(texts["s0"]) - 1


def test_few_files_are_read_ahead(model: xLSTMLarge, tmp_path: Path) -> None:
    """Many requests that wait with sessions do not all have their states in memory."""
    options: dict[str, Any] = {"prefix_cache_bytes": 0, "swap_bytes": 0, "swap_folder": tmp_path, "slots": 2}
    texts = files_of_sessions(model, 12, **options)
    size = max(file.stat().st_size for file in tmp_path.iterdir())
    with engine_of(model, **options) as engine:
        answers = Answers()
        with paused(engine):
            for session, text in texts.items():
                engine.submit(Request(session, text, SAMPLED, session=session), answers)

            engine._stepper.swap._thread.submit(int).result()
            most = engine.metrics().swap_host_bytes  # while the engine stands still
        answers.wait(*texts)
        assert [answers.outputs[session][-1].cached_tokens for session in texts] == [len(x) - 1 for x in texts.values()]
        assert most <= 2 * size and engine.metrics().swap_failures == 0


def test_a_slow_disk_does_not_fill_the_memory(
    model: xLSTMLarge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = one_state(model)
    go_on = held_up("save_state", monkeypatch)
    with engine_of(model, prefix_cache_bytes=0, swap_bytes=3 * size, swap_folder=tmp_path) as engine:
        try:
            for n in range(20):
                turn(engine, [3 + n], f"s{n}")
            metrics = engine.metrics()
        finally:
            go_on.set()
    assert metrics.swap_host_bytes <= 11 * size + 20 * 1200  # logits and tokens beside
    assert metrics.swap_failures >= 20 - 11 and "swap_folder: too slow" in caplog.text


def test_names_of_sessions_are_not_paths(model: xLSTMLarge, tmp_path: Path) -> None:
    with engine_of(model, swap_folder=tmp_path / "states", swap_bytes=0) as engine:
        turn(engine, [], "../../x/\0")
    assert [file.parent.name for file in tmp_path.rglob("*.state")] == ["states"]
    assert (tmp_path / "states").stat().st_mode & 0o077 == 0


def test_files_of_sessions_are_for_their_owner_alone(model: xLSTMLarge, tmp_path: Path) -> None:
    """They say what was talked of. In a folder that was there before and that everybody may read, too."""
    tmp_path.chmod(0o755)
    with engine_of(model, swap_folder=tmp_path) as engine:
        turn(engine, [])
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0


def test_what_a_killed_process_had_half_written_is_removed(model: xLSTMLarge, tmp_path: Path) -> None:
    half, another = tmp_path / ".0123.state.4567", tmp_path / ".89ab.state.4568"
    half.write_bytes(b"part")
    another.write_bytes(b"being written now")
    os.utime(half, (0, 0))
    with engine_of(model, swap_folder=tmp_path) as engine:
        assert not half.exists() and another.exists() and engine.metrics().swap_folder_bytes == 0


def test_no_text_in_logs(model: xLSTMLarge, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with engine_of(model, swap_folder=tmp_path) as engine:
        turn(engine, [])
    assert "turn" not in caplog.text


# ---- kept in fewer bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(1, 2, 8, 16), (1, 1, 3, 5)], ids=str)
def test_narrow_states(dtype: str, shape: tuple[int, ...]) -> None:
    """Rows of any size, zeros and single large values among them."""
    c = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 10.0 ** torch.arange(-4, shape[2] - 4)[:, None]
    c[..., 1, :] = 0
    c[..., 2, 3] = 1e20
    kept = narrow.narrowed(c, dtype)
    assert kept.nbytes == narrow.narrow_bytes(c, dtype) and kept.is_contiguous()
    back = narrow.widened(kept).float()
    bound = c.abs() * 2.0**-8 if dtype == "bfloat16" else c.abs().amax(-1, keepdim=True) / 254
    assert ((back - c).abs() <= bound * (1 + 1e-6)).all() and (back[..., 1, :] == 0).all()
    assert narrow.narrowed(c, None) is c and narrow.widened(c) is c


@pytest.mark.parametrize("dtype, share, most", [("bfloat16", 0.55, 0.02), ("int8", 0.35, 0.05)])
def test_kept_in_fewer_bytes(model: xLSTMLarge, dtype: str, share: float, most: float, tmp_path: Path) -> None:
    """Prompts, conversations and sessions, these through files; preempted requests keep every bit."""
    chat = SYSTEM + prompt_of(7, 2)
    requests = [Request("a", chat, SAMPLED), Request("b", chat, SAMPLED), Request("s", chat, SAMPLED, session="s")]
    with engine_of(model, prefix_cache_bytes=0) as engine:
        exact = ask(engine, requests[0])
        text = chat + exact.tokens("a")
        turn = Request("turn", [*text, 5, 6], SAMPLED, session="s")
        exact_turn = ask(engine, turn)
    size = one_state(model)
    with engine_of(model, kept_dtype=dtype, swap_folder=tmp_path, swap_bytes=0) as engine:
        answers = Answers()
        for request in requests:
            engine.submit(request, answers)
            answers.wait(request.id)
        metrics = engine.metrics()
        assert metrics.prefix_cache_bytes < (share * size + 2000) * metrics.prefix_cache_states
        (first, second, _) = (answers.logprobs(request.id) for request in requests)
        assert first == exact.logprobs("a")  # it was read, not gone on from
        assert 0 < abs(second[1].logprob - first[1].logprob) < most
        until(lambda: engine.metrics().swap_folder_bytes > 0)
        (file,) = tmp_path.glob("*.state")
        assert file.stat().st_size < share * size + 20_000
        with pytest.raises(ValueError, match=f"a state of a model with kept_dtype None, got {dtype}"):
            states.load_state(file, model)
        turned = ask(engine, turn)
        assert turned.outputs["turn"][-1].cached_tokens == len(text) - 1
        assert abs(turned.logprobs("turn")[0].logprob - exact_turn.logprobs("turn")[0].logprob) < most
    with engine_of(model, kept_dtype=dtype, slots=1, prefix_cache_bytes=0) as engine:
        answers = Answers()

        def on_output(output: Any) -> None:
            answers(output)
            if output.new_tokens == 3:
                engine.submit(Request("high", [5], SAMPLED, priority=5), answers)

        engine.submit(requests[0], on_output)
        answers.wait("a")
        assert answers.logprobs("a") == exact.logprobs("a") and engine.metrics().preemptions == 1
