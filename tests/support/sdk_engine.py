"""A server built with the published Python SDK, served over HTTP by the SDK's own code on any free port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rcp

Json = dict[str, Any]


class SdkEngine:
    """One SDK server; `asked` keeps the params of every call its handlers got."""

    def __init__(self, name: str, capabilities: Json) -> None:
        self.server = rcp.Server()
        self.server.set_info(name, "1.0")
        for capability, said in capabilities.items():
            self.server.advertise(capability, said)
        self.asked: list[tuple[str, Json]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/rcp"

    def on(self, method: str, answer: Any) -> None:
        """Answer `method` with `answer(params)`."""

        def handler(params: Json) -> Any:
            self.asked.append((method, params))
            return answer(params)

        self.server.on(method, handler)

    @contextmanager
    def serving(self) -> Iterator["SdkEngine"]:
        """Serve until the block ends, one connection at a time, as the SDK does."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            # A listener that is only closed may leave the thread in accept(); shut down, it returns.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join(60)

    def _serve(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            with conn:
                self.server._serve_http_conn(conn)
