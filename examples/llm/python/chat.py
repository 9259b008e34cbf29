"""A chat under a token budget. Python's standard library, and a tollgate server.

    tollgate serve --config ../tollgate.toml &
    python3 chat.py stream alice 600 400     # reserves 600 tokens, streams 400, settles 400
    python3 chat.py call alice 250           # asks, calls, and records the 250 tokens it used

Exit code 0: answered. 1: over budget.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

TOLLGATE = os.environ.get("TOLLGATE", "http://127.0.0.1:8080")
TTL = 3.0  # Seconds. Short, so that this demonstration renews; 30 to 60 suit production.


class OverBudget(Exception):
    """The budget does not admit the request now."""


def tollgate(path, body):
    """Asks tollgate, and returns its answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(TOLLGATE + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.loads(response.read() or "{}")
    except urllib.error.HTTPError as error:
        answer = json.load(error)
        if error.code != 429:
            raise RuntimeError(answer["detail"]) from error
        raise OverBudget(answer) from error


def model(tokens):
    """A stand-in for a language model: a hundred tokens a second."""
    for number in range(tokens):
        time.sleep(0.01)
        yield f"token{number} "


def stream(client, estimate, tokens):
    """Answers as the model streams. The budget pays what the stream used, however it ends."""
    body = {"attributes": {"client": client}, "cost": estimate, "ttl": f"{TTL:.0f}s"}
    reserved = tollgate("/v1/reserve", body)
    print(f"reserved {estimate}, {reserved['remaining']} left", flush=True)
    reservation = "/v1/reserve/" + reserved["id"]
    used, renew_at = 0, time.monotonic() + TTL / 3
    try:
        for token in model(tokens):
            used += 1  # Send `token` on to the caller here.
            if time.monotonic() >= renew_at:
                tollgate(reservation + "/renew", {"ttl": f"{TTL:.0f}s"})
                renew_at = time.monotonic() + TTL / 3
    finally:
        settled = tollgate(reservation + "/settle", {"cost": used})
    print(f"used {used}, {settled['shortfall']} beyond the debt")


def call(client, tokens):
    """Calls a model that says afterwards what it used, as an embedding does."""
    asked = {"attributes": {"client": client}, "cost": 1, "peek": True}
    tollgate("/v1/check", asked)
    used = sum(1 for _ in model(tokens))
    recorded = tollgate("/v1/record", {"attributes": {"client": client}, "cost": used})
    print(f"used {used}, {recorded['remaining']} left, {recorded.get('owed', 0)} owed")


def main(verb, client, *numbers):
    try:
        {"stream": stream, "call": call}[verb](client, *map(int, numbers))
    except OverBudget as denied:
        answer = denied.args[0]
        print(f"over budget: {answer['remaining']} left, {answer.get('owed', 0)} owed,"
              f" retry in {answer['retryAfterMs'] / 1000:.0f} s")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
