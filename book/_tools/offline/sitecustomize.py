"""Python that reaches this machine alone: what `make book` puts first on the path of its processes."""

import sys

LOCAL = (None, "", "localhost", "127.0.0.1", "::1")


def refuse(event: str, arguments: tuple) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        address = arguments
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
    else:
        return
    if isinstance(address, tuple) and address[0] not in LOCAL:  # else a file, or nobody
        raise OSError(f"make book executes without a network, and {address[0]} was asked for")


sys.addaudithook(refuse)
