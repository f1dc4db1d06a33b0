"""What the packets of a line carry (tests/integration/hosts.py records them): headers of IP and TCP, what
ZeroMQ adds to a message (ZMTP 3.1), what encryption adds to it (CURVE), and the messages themselves."""

import dataclasses
import struct

IPV4, TCP, SYN = 4, 6, 2
GREETING = 64  # bytes before the first frame of a connection, in each direction
LONG, COMMAND = 2, 4  # flags of a frame
ENCRYPTED = b"\x07MESSAGE"  # then a nonce of 8 bytes, and in a box of 16 more a flag and the message
CURVE_BYTES = len(ENCRYPTED) + 8 + 16 + 1


@dataclasses.dataclass
class Carried:
    """Bytes; total is the sum of those behind it."""

    total: int = 0
    headers: int = 0  # packets that carry nothing else included
    zmtp: int = 0  # greetings, handshakes, and what stands before each frame
    encryption: int = 0
    messages: int = 0
    repeated: int = 0  # what TCP has sent again
    packets: int = 0
    frames: int = 0  # messages, counted

    def per(self, count, other=None):
        """Each figure, less that of another one, divided by the count."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other or Carried()))
        return Carried(*((a - b) / count for a, b in pairs))


def signed(difference):
    """Of two numbers of TCP's, which begin again behind 2^32."""
    return (difference + (1 << 31)) % (1 << 32) - (1 << 31)


class Stream:
    """One direction of a connection, from its first byte on. Segments may come twice, or out of order."""

    def __init__(self, first):
        self.first = self.next = first
        self.waiting, self.data = {}, bytearray()

    def add(self, number, data):
        if len(data) > len(self.waiting.get(number, b"")):
            self.waiting[number] = data
        while ready := [n for n in self.waiting if signed(n - self.next) <= 0]:
            data = self.waiting.pop(ready[0])[signed(self.next - ready[0]):]
            self.data += data
            self.next = (self.next + len(data)) % (1 << 32)


def frames(data):
    """(flags, body) of all whole frames of a direction."""
    at = GREETING
    while at + 2 <= len(data):
        head = 9 if data[at] & LONG else 2
        size = int.from_bytes(data[at + 1:at + head], "big")
        if at + head + size > len(data):
            return
        yield data[at], data[at + head:at + head + size]
        at += head + size


def segment(packet):
    """Of a packet of TCP: (direction, does it begin there, number of the first byte, data); else None."""
    if packet[0] >> 4 != IPV4 or packet[9] != TCP:
        return None
    begin, end = (packet[0] & 15) * 4, struct.unpack_from("!H", packet, 2)[0]
    number, offset, flags = struct.unpack_from("!I4xBB", packet, begin + 4)
    first = (number + bool(flags & SYN)) % (1 << 32)
    direction = packet[12:20] + packet[begin:begin + 4]
    return direction, bool(flags & SYN), first, packet[begin + (offset >> 4) * 4:end]


def carried(packets):
    sum_of, streams, now = Carried(), [], {}
    for packet in packets:
        sum_of.packets += 1
        sum_of.total += len(packet)
        direction, begins, first, data = segment(packet) or (None, False, 0, b"")
        sum_of.headers += len(packet) - len(data)
        if begins and (direction not in now or now[direction].first != first):
            streams.append(Stream(first))
            now[direction] = streams[-1]
        if data:
            now[direction].add(first, data)
    for stream in streams:
        add_stream(sum_of, bytes(stream.data))
    sum_of.repeated = sum_of.total - sum_of.headers - sum_of.zmtp - sum_of.encryption - sum_of.messages
    return sum_of


def add_stream(sum_of, data):
    added = 0
    for flags, body in frames(data):
        if flags & COMMAND:
            continue
        encrypted = CURVE_BYTES if body.startswith(ENCRYPTED) else 0
        sum_of.frames += 1
        sum_of.encryption += encrypted
        sum_of.messages += len(body) - encrypted
        added += len(body)
    sum_of.zmtp += len(data) - added
