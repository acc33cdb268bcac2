"""Reads what a replayed stage writes to its clients, in a process of its own, as clients are.

    python -m pipeline.bench.reader

It prints the port that it opened, as one line, and reads all that comes until its standard input ends.
"""

import asyncio
import sys

HOST = "127.0.0.1"
_BYTES = 1 << 16


async def main() -> None:
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(_read, HOST, 0)
    loop.add_reader(sys.stdin.fileno(), is_over.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await is_over.wait()
    loop.remove_reader(sys.stdin.fileno())
    server.close()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(_BYTES):
        pass
    writer.close()


if __name__ == "__main__":
    asyncio.run(main())
