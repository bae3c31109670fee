"""What a gateway is without anything in it: a FastAPI handler that appends the body to a file and syncs it.

`python -m bench.peers.append_server FILE PORT`. The same server, loop and parser as ours. The write blocks
the loop: handing it to a thread was slower, since a sync takes less than the hop.
"""

from __future__ import annotations

import os
import sys

import uvicorn
from fastapi import FastAPI, Request, Response


def create_app(path: str) -> FastAPI:
    app = FastAPI()
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    @app.post("/v1/streams/{stream}/events")
    async def take(stream: str, request: Request) -> Response:
        body = await request.body()
        os.write(file, body)
        os.fsync(file)
        return Response(b'{"status":"durable"}', 202, media_type="application/json")

    return app


if __name__ == "__main__":
    uvicorn.run(
        create_app(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
