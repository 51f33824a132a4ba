"""Asks the server of a port for /health, fifty times a second, and prints how long each answer took. A process of its
own, so that it does not wait for what the drill itself has to do."""

import http.client
import sys
import time


def main(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    while True:
        begin = time.monotonic()
        connection.request("GET", "/health")
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise SystemExit(f"/health answers {reply.status}")
        print(time.monotonic() - begin, flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]))
