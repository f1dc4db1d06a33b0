"""A TCP line between two programs of this host that delays what passes, and that can be cut or stopped.

A program connects to `port` instead of the other's own port. What comes from either side is kept for the
delay and sent on, in order. `cut` ends all connections at once. While `stopped` is true nothing passes
and nobody is told, as on a line that has gone dead. `bytes` counts what both sides have sent.
"""

import collections
import select
import socket
import threading
import time

PIECE = 65536
HELD = 1 << 22  # bytes on their way, beyond which a side must wait
TURN = 0.02  # seconds after which `stopped` and the end are seen
HOST = "127.0.0.1"


class Direction:
    """From one socket to another."""

    def __init__(self, source, sink):
        self.source, self.sink, self.ended = source, sink, False
        self.queue, self.held = collections.deque(), 0  # (when it is due, piece); b"" is the end

    def read(self, delay):
        piece = self.source.recv(PIECE)
        self.ended = not piece
        self.held += len(piece)
        self.queue.append((time.monotonic() + delay, piece))
        return len(piece)

    def write(self):
        """What is due. False: the line has ended."""
        while self.queue and self.queue[0][0] <= time.monotonic():
            due, piece = self.queue.popleft()
            if not piece:
                return False
            sent = self.sink.send(piece)
            self.held -= sent
            if sent < len(piece):
                self.queue.appendleft((due, piece[sent:]))
                break
        return True


class TcpLine:
    """To that port of this host. Use as a context."""

    def __init__(self, to, delay=0.0):
        self.to, self.delay, self.stopped, self.bytes, self.connections = to, delay, False, 0, 0
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.lines, self.cutting, self.ending = [], False, False  # lines: pairs of directions
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending = True
        self.thread.join()

    def cut(self):
        self.cutting = True

    def _run(self):
        while not self.ending:
            self._turn()
        self._close(list(self.lines))
        self.listener.close()

    def _close(self, lines):
        for line in lines:
            self.lines.remove(line)
            for direction in line:
                direction.source.close()

    def _accept(self):
        near, _ = self.listener.accept()
        try:
            far = socket.create_connection((HOST, self.to))
        except OSError:
            near.close()
            return
        for s in (near, far):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            s.setblocking(False)
        self.connections += 1
        self.lines.append((Direction(near, far), Direction(far, near)))

    def _turn(self):
        """Waits for the next thing that happens, in microseconds: epoll would wait in milliseconds."""
        if self.cutting:
            self.cutting = False
            self._close(list(self.lines))
        moving = [] if self.stopped else [d for line in self.lines for d in line]
        due = min((d.queue[0][0] for d in moving if d.queue), default=float("inf"))
        wait = min(TURN, max(0.0, due - time.monotonic()))
        full = {d.sink for d in moving if d.queue and d.queue[0][0] <= time.monotonic()}
        sources = [d.source for d in moving if not d.ended and d.held < HELD]
        ready, _, _ = select.select([self.listener, *sources], full, [], TURN if full else wait)
        if self.listener in ready:
            self._accept()
        for line in list(self.lines) if not self.stopped else ():
            self._move(line, ready)

    def _move(self, line, ready):
        try:
            self.bytes += sum(d.read(self.delay) for d in line if d.source in ready)
            alive = all([d.write() for d in line])
        except BlockingIOError:
            return
        except OSError:
            alive = False
        if not alive:
            self._close([line])
