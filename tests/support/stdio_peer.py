"""A scripted engine on stdin and stdout, run as a child process: `python -u stdio_peer.py BEHAVIOUR`.

`obey` does what each request's `params.do` says, a list of steps; `deaf` never reads; `exit STATUS TEXT` ends at once;
`stubborn` ignores EOF and SIGTERM; `flood FD TEXT` writes TEXT to FD without end, and answers beside that.
"""

import json
import os
import signal
import sys
import threading
import time

held = []
inbox = []


def write(text):
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def answer(request, **extra):
    result = {"method": request["method"], "pid": os.getpid(), "echo": request["params"].get("echo"), **extra}
    write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}, ensure_ascii=False) + "\n")


def release():
    while held:
        answer(held.pop())


def write_error(text):
    data = text.encode()
    while data:
        data = data[os.write(2, data) :]


def act(request, step):
    verb, *arguments = step
    if verb == "ok":
        answer(request)
    elif verb == "say":
        write(arguments[0].replace("{id}", str(request["id"])) + "\n")
    elif verb == "write":
        write(arguments[0].replace("{id}", str(request["id"])) * (arguments[1] if len(arguments) > 1 else 1))
    elif verb == "stderr":
        write_error(arguments[0] * (arguments[1] if len(arguments) > 1 else 1))
    elif verb == "hold":
        held.append(request)
    elif verb == "release":
        release()
    elif verb == "inbox":
        answer(request, inbox=inbox)
    elif verb == "close":
        os.close(arguments[0])
    elif verb == "exit":
        os._exit(arguments[0])
    elif verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def obey():
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request:
            inbox.append(request)
            continue
        for step in request["params"].get("do", [["ok"]]):
            act(request, step)


def deaf():
    while True:
        time.sleep(60)


def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    obey()
    deaf()


def output_limit(fd, text):
    data = text.encode() * (65536 // len(text))
    threading.Thread(target=obey, daemon=True).start()
    while True:
        os.write(int(fd), data)


if __name__ == "__main__":
    behaviour, *rest = sys.argv[1:]
    if behaviour == "exit":
        write_error(rest[1])
        sys.exit(int(rest[0]))
    {"obey": obey, "deaf": deaf, "stubborn": stubborn, "flood": output_limit}[behaviour](*rest)
