"""Breaks of a server as a child process: what its program does otherwise, by the check that catches it."""

STDIO_BREAKS = {
    "handshake.required": ("sys.argv", "server._initialized = True"),
    "stdio.clean-output": ("sys.argv", "print('starting up', flush=True)"),
    "stdio.end-of-input": ("serve", "server.serve_stdio(); import time; time.sleep(30)"),
    "stdio.shutdown": ("serve", "server.serve_stdio(); sys.exit(3)"),
}
"""Check -> where the program is changed (before serving, or the serving itself), and the line."""

LINE_BREAKS = {
    "stdio.blank-lines": "if not line.strip(): sys.exit(1)",
    "stdio.clean-output": "print(chr(0xFEFF), end='')",
    "stdio.one-reply": """print('{"jsonrpc": "2.0", "id": "stray", "result": {}}') if 'ping' in line else None""",
    "stdio.pipelined": "sys.stdin.readline() if 'pipelined' in line else None",
    "stdio.cancel": "print(server.handle_line(line), flush=True) if 'to-be-cancelled' in line else None",
}
"""Check -> what the program does with a line before it answers it."""
