"""Links are recorded while a server streams over real sockets; what is read is what clients were told."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.assemble import check
from pipeline.checkpoint.fake import byte_card
from pipeline.errors import ConfigError
from pipeline.messages import FinishReason, GenerateRequest, StepHandle, StepPlan, TextBatch, TokenBatch
from pipeline.runtime.recording import Recording, read
from pipeline.runtime.testing import FakeRunner
from pipeline.topology import NODES
from tests.e2e.world import Server, serving

PROMPT = "Ahab's tremendous zeppelin"
STAGES = [node.name for node in NODES[1:]]


async def stream(session: aiohttp.ClientSession, seed: int, num_tokens: int = 40) -> str:
    """What a client is told."""
    body = {"prompt": f"{PROMPT} {seed}", "max_tokens": num_tokens, "seed": seed, "temperature": 1}
    async with session.post("/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        text: str = answer["choices"][0]["text"]
        return text


async def streams(server: Server, seeds: range) -> list[str]:
    async with aiohttp.ClientSession(server.url) as session:
        return await asyncio.gather(*(stream(session, seed) for seed in seeds))


def texts_of(recording: Recording) -> list[str]:
    """What the stream stage was given, request by request."""
    texts: dict[int, str] = {}
    for entry in recording.entries:
        if isinstance(entry.message, TextBatch):
            for request_id, text in zip(entry.message.request_ids, entry.message.texts, strict=True):
                texts[request_id] = texts.get(request_id, "") + text
    return sorted(texts.values())


def test_all_that_every_stage_takes_from_the_start(tmp_path: Path) -> None:
    toml = f"[trace]\nrecord = {[f'->{stage}' for stage in STAGES]}\nrecord_redacted = false\n"
    toml += f'record_dir = "{tmp_path}/made/for/it"\n[admin]\nport = 0'

    async def main() -> list[str]:
        async with serving(byte_card(), FakeRunner, toml) as server:
            assert {state.link for state in server.pipeline.recordings.states()} == {
                f"->{stage}" for stage in STAGES
            }
            return await streams(server, range(8))

    told = asyncio.run(main())
    found = {path.name.partition(".")[0]: read(path) for path in (tmp_path / "made/for/it").iterdir()}
    assert sorted(found) == sorted(f"to-{stage}" for stage in STAGES)
    for recording in found.values():
        assert recording.end is not None and recording.end.reason == "the server ended"
        assert not recording.end.num_lost
        times = [entry.taken_ns for entry in recording.entries]
        assert times == sorted(times) and all(entry.at_ns <= entry.taken_ns for entry in recording.entries)

    def of(stage: str, kind: Any) -> list[Any]:
        return [each.message for each in found[f"to-{stage}"].entries if isinstance(each.message, kind)]

    assert sorted(request.prompt for request in of("tokenize", GenerateRequest)) == [
        f"{PROMPT} {seed}" for seed in range(8)
    ]
    assert texts_of(found["to-stream"]) == sorted(told)
    assert type(found["to-schedule"].entries[0].message).__name__ == "DeviceReady"
    plans = of("execute", StepPlan)
    handles: list[StepHandle] = [entry.message for entry in found["to-sample"].entries]
    assert [handle.plan for handle in handles] == plans
    sampled = sum(len(handle.token_ids_sync()) for handle in handles)
    assert sampled == sum(len(batch.token_ids) for batch in of("detokenize", TokenBatch)) == 8 * 40
    ends = [reason for batch in of("stream", TextBatch) for reason in batch.finish_reasons if reason]
    assert ends == [FinishReason.LENGTH] * 8


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def page_toml(folder: Path, more: str = "") -> str:
    return f'[trace]\nrecord_dir = "{folder}"\nrecord_max_bytes = 100000\n{more}\n[admin]\nport = 0'


class Page:
    """A server and its admin port."""

    def __init__(self, server: Server, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session

    async def ask(self, method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
        async with self.session.request(method, f"/api/recordings{path}", json=body) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.read())


def with_page(toml: str, do: Any) -> None:
    async def main() -> None:
        config = configuration.loads(toml, "test.toml")
        async with (
            serving(byte_card(), FakeRunner, toml) as server,
            admin.beside(server.pipeline, config, byte_card()) as page,
        ):
            assert page is not None
            async with aiohttp.ClientSession(page.url) as session:
                await do(Page(server, session))

    asyncio.run(main())


@pytest.mark.parametrize("is_redacted", [True, False])
def test_a_link_is_recorded_when_the_admin_port_is_asked_to(tmp_path: Path, is_redacted: bool) -> None:
    async def do(page: Page) -> None:
        before = await streams(page.server, range(2))
        status, state = await page.ask(
            "POST", body={"link": "detokenize->stream", "max_s": 30, "is_redacted": is_redacted}
        )
        assert status == 201 and state["ended"] == "" and state["bounds"]["max_s"] == 30
        told = await streams(page.server, range(4, 8))
        assert (await page.ask("GET", f"/{state['id']}"))[0] == 409
        status, ended = await page.ask("POST", f"/{state['id']}/stop", {})
        assert status == 200 and ended["ended"] == "it was stopped" and ended["num_messages"] > 0
        assert (await page.ask("GET"))[1] == [ended]
        status, content = await page.ask("GET", f"/{state['id']}")
        assert status == 200 and len(content) == ended["num_bytes"]
        copy = tmp_path / "copy.rec"
        copy.write_bytes(content)
        recording = read(copy)
        assert {type(entry.message) for entry in recording.entries} == {TextBatch}
        assert recording.header.stage == "stream" and recording.header.links == ("detokenize->stream",)
        assert recording.header.is_redacted is is_redacted
        if is_redacted:
            assert sorted(map(len, texts_of(recording))) == sorted(map(len, told))
            assert not any(text[:8].encode() in content for text in (*told, *before))
        else:
            assert texts_of(recording) == sorted(told)
        assert (await page.ask("DELETE", f"/{state['id']}"))[0] == 204
        assert (await page.ask("GET"))[1] == [] and files(tmp_path) == [copy]

    with_page(page_toml(tmp_path, "" if is_redacted else "record_redacted = false"), do)


def test_no_prompt_gets_into_a_redacted_file(tmp_path: Path) -> None:
    """Of any stage."""

    async def do(page: Page) -> None:
        for stage in STAGES:
            assert (await page.ask("POST", body={"link": f"->{stage}"}))[0] == 201
        told = await streams(page.server, range(3))
        for stage in STAGES:
            assert (await page.ask("GET"))[1][STAGES.index(stage)]["is_redacted"]
        for state in (await page.ask("GET"))[1]:
            await page.ask("POST", f"/{state['id']}/stop", {})
        assert len(files(tmp_path)) == len(STAGES)
        for path in files(tmp_path):
            content = path.read_bytes()
            assert not any(word.encode() in content for word in PROMPT.split() if len(word) > 3), path
            assert bytes(PROMPT[:12].encode()) not in content, path  # as token ids of a byte tokenizer
            assert not any(text[:8].encode() in content for text in told), path
            assert read(path).entries

    with_page(page_toml(tmp_path), do)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (
            {"link": "ingress->stage"},
            400,
            "no link is called 'ingress->stage'. There are ->tokenize, ingress->tok",
        ),
        ({"link": "->stream", "is_redacted": False}, 403, "trace.record_redacted is true"),
        ({"link": "->stream", "max_bytes": 200_000}, 400, "max_bytes = 200000: must be from 4096 to 100000"),
        ({"link": "->stream", "max_s": 0}, 400, "max_s = 0.0: must be from 0.1 to 60"),
        ({"link": "->stream", "path": "/etc"}, 400, "unknown field `path`"),
        ({}, 400, "missing required field `link`"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    tmp_path: Path, body: dict[str, Any], status: int, words: str
) -> None:
    async def do(page: Page) -> None:
        answered, answer = await page.ask("POST", body=body)
        assert answered == status and words in answer["error"]["message"]
        assert files(tmp_path) == []

    with_page(page_toml(tmp_path), do)


def test_whom_nobody_records_nobody_taps(tmp_path: Path) -> None:
    async def do(page: Page) -> None:
        def taps() -> int:
            return sum(len(inbox.taps) for inbox in page.server.pipeline.inboxes.values())

        assert taps() == 0
        _, state = await page.ask("POST", body={"link": "->stream"})
        assert taps() == 1
        await page.ask("POST", f"/{state['id']}/stop", {})
        assert taps() == 0

    with_page(page_toml(tmp_path), do)


def test_one_recording_a_link_and_so_many_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.recordings.recordings.MAX_FILES", 2)

    async def do(page: Page) -> None:
        link = {"link": "->stream"}
        begun = await asyncio.gather(*(page.ask("POST", body=link) for _ in range(3)))
        assert sorted(status for status, _ in begun) == [201, 409, 409]
        (state,) = [answer for status, answer in begun if status == 201]
        assert (await page.ask("POST", body={"link": "detokenize->stream"}))[0] == 201, "another link"
        await page.ask("POST", f"/{state['id']}/stop", {})
        status, answer = await page.ask("POST", body=link)
        assert status == 409 and answer["error"]["code"] == "too_many_recordings"
        await page.ask("DELETE", f"/{state['id']}")
        assert (await page.ask("POST", body=link))[0] == 201

    with_page(page_toml(tmp_path), do)


def test_only_files_of_recordings_are_given_and_only_to_those_who_may_ask(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of somebody else")

    async def do(page: Page) -> None:
        for path in ("/secret", "/..%2fsecret", f"/{tmp_path}/secret".replace("/", "%2f"), "/.."):
            assert (await page.ask("GET", path))[0] == 404
            assert (await page.ask("DELETE", path))[0] in (404, 405)
        async with page.session.post("/api/recordings", data='{"link": "->stream"}') as response:
            assert response.status == 415, "a page of another site can have a browser send this"
        host = {"Host": "evil.example"}
        async with page.session.post("/api/recordings", json={"link": "->stream"}, headers=host) as response:
            assert response.status == 403
        assert (await page.ask("GET"))[1] == []

    with_page(page_toml(tmp_path), do)


def test_a_name_that_no_link_has_is_a_fault_of_the_configuration() -> None:
    config = configuration.loads('[trace]\nrecord = ["schedule->stage"]', "my.toml")
    with pytest.raises(ConfigError, match=r"my.toml: trace.record: no link is called 'schedule->stage'"):
        check(config)


def test_a_folder_that_cannot_be_written_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    toml = f'[trace]\nrecord = ["->stream"]\nrecord_dir = "{tmp_path}/file/folder"'

    async def main() -> None:
        async with serving(byte_card(), FakeRunner, toml):
            pass

    with pytest.raises(ConfigError, match=r"trace.record: trace.record_dir: .*Not a directory"):
        asyncio.run(main())
