"""A client of the websocket (docs/websocket.md): streams an answer, survives a lost connection, cancels.

python examples/websocket_client.py "Once upon a time" [--url http://127.0.0.1:8000] [--max-tokens 64]
    [--cancel-after TOKENS] [--lose-after TOKENS]
"""

import argparse
import asyncio

import aiohttp


async def stream(args: argparse.Namespace) -> None:
    session, index, num_tokens = "", 0, 0
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.ws_connect(f"{args.url}/v1/stream", protocols=("stageline.v1",)) as ws:
                hello = await ws.receive_json()
                if session:
                    await ws.send_json({"type": "resume", "id": "a", "session": session, "index": index})
                else:
                    request = {"prompt": args.prompt, "max_tokens": args.max_tokens, "resumable": True}
                    await ws.send_json({"type": "generate", "id": "a", **request})
                session = hello["session"]
                async for message in ws:
                    frame = message.json()
                    index = frame.get("index", index)
                    num_tokens += frame.get("tokens", 0)
                    print(frame.get("text", ""), end="", flush=True)
                    if frame["type"] in ("done", "error"):
                        print("\n", frame.get("finish_reason") or frame["error"]["message"])
                        return
                    if index % 50 == 0 and frame["type"] == "delta":
                        await ws.send_json({"type": "ack", "id": "a", "index": index})
                    if args.cancel_after and num_tokens >= args.cancel_after:
                        await ws.send_json({"type": "cancel", "id": "a"})
                    if args.lose_after and num_tokens >= args.lose_after:  # as if the network had failed
                        args.lose_after = 0
                        ws._response.connection.transport.abort()


parser = argparse.ArgumentParser()
parser.add_argument("prompt")
parser.add_argument("--url", default="http://127.0.0.1:8000")
parser.add_argument("--max-tokens", type=int, default=64)
parser.add_argument("--cancel-after", type=int, default=0)
parser.add_argument("--lose-after", type=int, default=0)
if __name__ == "__main__":
    asyncio.run(stream(parser.parse_args()))
