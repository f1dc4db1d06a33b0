"""Several hosts on this one: network namespaces, whose packets pass a program of ours that may delay and lose them.

Each host has a TUN device. The forwarder reads IP packets from all of them, drops some at random, keeps the others for the
delay, and writes them to the device of their destination, in order. So the TCP above is the kernel's own, with its
retransmissions, and a lost packet costs what it costs on a real line. (The kernel's netem would do the same; it is a module
that many kernels lack.)
"""

import collections
import ctypes
import fcntl
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
DEVICE = "tandem0"
TURN = 64  # packets of one device before another one's

LENGTH = struct.Struct("I")  # before each packet of a record
BOOT_ID = "/proc/sys/kernel/random/boot_id"

libc = ctypes.CDLL(None, use_errno=True)


def inside(namespace):
    """The beginning of a command that runs there. `ip -n' would mount things as well, which not every container permits."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]


def ip(*arguments, namespace=None):
    done = subprocess.run([*(inside(namespace) if namespace else ()), "ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def enter(namespace):
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def tun_device(name):
    """A file of whole IP packets of a new device in that namespace."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(there)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        return device
    finally:
        enter(home)
        os.close(home)
        os.close(there)


def packets(record):
    """Those of a record so far."""
    with open(record, "rb") as f:
        while len(head := f.read(LENGTH.size)) == LENGTH.size:
            size = LENGTH.unpack(head)[0]
            if len(packet := f.read(size)) < size:
                return
            yield packet


def remove_left_over():
    """Namespaces of a program that was killed before it could do that."""
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        if (owner := re.fullmatch(r"tandem-(\d+)-\w+", name)) and not os.path.exists(f"/proc/{owner[1]}"):
            ip("netns", "delete", name)


class Hosts:
    """`names` become hosts with the addresses 10.0.0.1, 10.0.0.2, ... Use as a context. OSError: not permitted here.

    record: a file that gets every packet, those that are lost included, in the order in which they were sent."""

    def __init__(self, *names, delay=0.0, loss=0.0, seed=1, record=None):
        self.delay, self.loss, self.seed, self.record = delay, loss, seed, record
        self.namespaces = {name: f"tandem-{os.getpid()}-{name}" for name in names}
        self.addresses = {name: f"10.0.0.{i}" for i, name in enumerate(names, 1)}
        self.made, self.devices, self.forwarder = [], {}, None
        self.folder, self.may_mount = tempfile.TemporaryDirectory(), False

    def __enter__(self):
        remove_left_over()
        tried = subprocess.run([*self._with_own_id(next(iter(self.namespaces))), "true"], capture_output=True, check=False)
        self.may_mount = tried.returncode == 0
        try:
            for name, namespace in self.namespaces.items():
                ip("netns", "add", namespace)
                self.made.append(namespace)
                self.devices[self.addresses[name]] = tun_device(namespace)
                ip("address", "add", f"{self.addresses[name]}/24", "dev", DEVICE, namespace=namespace)
                for device in (DEVICE, "lo"):
                    ip("link", "set", device, "up", namespace=namespace)
            self.forwarder = self._fork()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.forwarder:
            os.kill(self.forwarder, signal.SIGKILL)
            os.waitpid(self.forwarder, 0)
        for device in self.devices.values():
            os.close(device)
        for namespace in self.made:
            ip("netns", "delete", namespace)
        self.made, self.devices, self.forwarder = [], {}, None
        self.folder.cleanup()

    def command(self, name, *command):
        """As a command that runs on that host, where mounts are permitted under a kernel with an id of its own: programs that
        see the same one take each other for neighbours."""
        return [*inside(self.namespaces[name]), *(self._with_own_id(name) if self.may_mount else ()), *command]

    def _with_own_id(self, name):
        """/proc is made private first, or every program of this machine would see that id."""
        mount = f'mount --make-private /proc && mount --bind "$0" {BOOT_ID} && exec "$@"'
        return ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", mount, self._boot_id(name)]

    def _boot_id(self, name):
        path = os.path.join(self.folder.name, name)
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{uuid.uuid4()}\n")
        return path

    def _fork(self):
        parent, child = os.getpid(), os.fork()
        if child:
            return child
        try:
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() == parent:
                self._forward()
        finally:
            os._exit(1)

    def _forward(self):
        draw, queue = random.Random(self.seed), collections.deque()
        record = open(self.record, "ab", buffering=0) if self.record else None
        by_address = {socket.inet_aton(a): device for a, device in self.devices.items()}
        while True:
            wait = max(0, queue[0][0] - time.monotonic()) if queue else None
            for device in select.select(self.devices.values(), [], [], wait)[0]:  # epoll waits in milliseconds
                for _ in range(TURN):
                    try:
                        packet = os.read(device, 65536)
                    except BlockingIOError:
                        break
                    out = by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if record:
                        record.write(LENGTH.pack(len(packet)) + packet)
                    if out is not None and draw.random() >= self.loss:
                        queue.append((time.monotonic() + self.delay, out, packet))
            while queue and queue[0][0] <= time.monotonic():
                _, out, packet = queue.popleft()
                try:
                    os.write(out, packet)
                except OSError:
                    pass  # its host is full or going: lost
