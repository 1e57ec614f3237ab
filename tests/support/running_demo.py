"""The whole demo as a user starts it, for tests that ask it: one for a test session, started by whoever asks first."""

import json
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
START_SECONDS = 150.0
QUESTION = "how do I sort a list"


@dataclass(frozen=True)
class RunningDemo:
    """A demo that serves: its process, its gateway's address, and what it printed on the way."""

    process: "subprocess.Popen[str]"
    url: str
    registry: dict[str, Any]
    progress: str
    answer: str
    listeners: tuple[threading.Thread, ...]

    @property
    def port(self) -> int:
        """The port of its gateway."""
        return int(self.url.rpartition(":")[2])

    @property
    def engine_urls(self) -> dict[str, str]:
        """The addresses of its HTTP engines."""
        return {entry["id"]: entry["url"] for entry in self.registry["engines"] if "url" in entry}

    def end(self) -> int:
        """End it as a terminal that closes would; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            for listener in self.listeners:
                listener.join(60)
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


@cache
def running_demo() -> RunningDemo:
    """The demo of this test session, started on a free port and waited for."""
    command = [sys.executable, "-m", "app", "demo", "--port", "0", *QUESTION.split()]
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stderr is not None
    spoken: list[str] = []
    answer: list[str] = []
    serving = threading.Event()

    def listen() -> None:
        for line in process.stderr or ():
            spoken.append(line)
            if line.startswith("registry: "):
                serving.set()
        serving.set()

    listeners = (
        threading.Thread(target=listen, daemon=True),
        threading.Thread(target=lambda: answer.extend(process.stdout or ()), daemon=True),
    )
    for listener in listeners:
        listener.start()
    in_time = serving.wait(START_SECONDS)
    progress = "".join(spoken)
    place = re.search(r"^registry: (.+)$", progress, re.MULTILINE)
    if not in_time or place is None:
        process.kill()
        raise AssertionError(f"the demo did not come up:\n{progress}")
    gateway = re.search(r"serving RCP on (\S+)/rcp", progress)
    assert gateway is not None, progress
    registry = json.loads(Path(place[1]).read_text(encoding="utf-8"))
    return RunningDemo(process, gateway[1], registry, progress, "".join(answer), listeners)
