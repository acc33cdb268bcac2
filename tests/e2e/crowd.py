"""Streams that are read in a process of their own: python -m tests.e2e.crowd PORT COUNT BODY.

Prints how many ended as they should, with one finish reason and [DONE].
"""

import asyncio
import sys


async def stream(port: int, body: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    answer = await reader.read()
    writer.close()
    return answer.count(b'"finish_reason":"length"') == 1 and b"data: [DONE]\n\n" in answer[-40:]


async def main(port: int, count: int, body: bytes) -> None:
    ended = await asyncio.gather(*(stream(port, body) for _ in range(count)))
    print(sum(ended))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()))
