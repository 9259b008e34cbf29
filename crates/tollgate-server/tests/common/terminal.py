"""Runs a program in a pseudo-terminal of 80 columns and 24 lines, and plays a script on it.

The script is a list of steps as JSON: ["see", text], ["miss", text] (waits until the screen does
not have it), ["wrote", text] (waits until the program has written it, shown or not by now),
["type", keys], ["draw", file]. The emulator is pyte, so the program's bytes are
interpreted as a terminal would. At the end the program's exit code and whether it left the screen
as it was are printed.
"""

import fcntl, html, json, os, pty, select, struct, sys, termios, time

import pyte

COLUMNS, LINES, DEADLINE = 80, 24, time.monotonic() + 30.0
COLOURS = {"00cd00": "#5fd0a0", "green": "#5fd0a0", "cd0000": "#ff8896", "red": "#ff8896", "default": "#e6eaf2"}

steps, command = json.loads(sys.argv[1]), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.environ["TERM"] = "xterm-256color"
    os.execv(command[0], command)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
screen = pyte.Screen(COLUMNS, LINES)
stream = pyte.ByteStream(screen)
raw = b""


def read():
    """Feeds the emulator. False once the program has ended, or at the deadline."""
    global raw
    ready, _, _ = select.select([terminal], [], [], max(0.0, DEADLINE - time.monotonic()))
    try:
        data = os.read(terminal, 65536) if ready else b""
    except OSError:
        data = b""
    raw += data
    stream.feed(data)
    return bool(data)


def shown():
    return "\n".join(screen.display)


def draw(file):
    """The screen as a picture."""
    rows = []
    for line in range(LINES):
        cells, spans = screen.buffer[line], []
        for column in range(COLUMNS):
            cell = cells[column]
            style = ("default" if cell.reverse else cell.fg, cell.bold, cell.reverse)
            if spans and spans[-1][0] == style:
                spans[-1][1].append(cell.data)
            else:
                spans.append((style, [cell.data]))
        text = "".join(
            f'<tspan fill="{"#7fb0ff" if reverse else COLOURS.get(colour, COLOURS["default"])}"'
            + (' font-weight="700"' if bold else "") + f">{html.escape(''.join(data))}</tspan>"
            for (colour, bold, reverse), data in spans
        )
        rows.append(f'<text x="12" y="{24 + 17 * line}" xml:space="preserve">{text}</text>')
    width, height = 24 + COLUMNS * 7.83, 24 + 17 * LINES
    with open(file, "w") as out:
        out.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}" role="img" aria-label="tollgate top" font-family="ui-monospace, Menlo, '
            f'DejaVu Sans Mono, monospace" font-size="13"><rect width="100%" height="100%" rx="8" '
            f'fill="#11151c"/>\n' + "\n".join(rows) + "\n</svg>\n"
        )


for verb, argument in steps:
    if verb == "type":
        os.write(terminal, argument.encode())
    elif verb == "draw":
        draw(argument)
    elif verb == "wrote":
        while argument.encode() not in raw:
            if not read():
                sys.exit(f"waited for {argument!r} to be written:\n{raw[-4000:]!r}")
    else:
        while (argument in shown()) != (verb == "see"):
            if not read():
                sys.exit(f"waited to {verb} {argument!r}:\n{shown()}")
while read():
    pass
_, status = os.waitpid(child, 0)
print(json.dumps({
    "code": os.waitstatus_to_exitcode(status),
    "restored": raw.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in raw[-200:],
    "bytes": len(raw),
    "bell": b"\x07" in raw,
    "wide": max(len(line.rstrip()) for line in screen.display),
}))
