"""What the benchmarks tell of the machine, and programs that they run."""

import contextlib
import os
import pathlib
import platform
import resource
import subprocess
import sys

FLAGS_THAT_MATTER = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni", "amx_int8")
COMMAND_LIMIT = 900  # seconds: of what hangs, the rest need not know
CROWDED = 0.05  # of the CPU time: so much used by others makes figures doubtful


def say(text):
    print(f"{pathlib.Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


class Failure(Exception):
    pass


def leave(signal_number, _):
    sys.exit(128 + signal_number)  # so that servers and neighbours are ended on the way


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command(arguments, seconds=COMMAND_LIMIT, given=None):
    """Runs a program to its end, which must be a good one. given: text for its stdin."""
    name = pathlib.Path(str(arguments[0])).name
    stdin = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    try:
        done = subprocess.run([str(a) for a in arguments], **stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failure(f"{name} took longer than {seconds} s") from None
    if done.returncode != 0:
        raise Failure(f"{name} failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    return done


def cpu_times():
    """Seconds since boot, of all CPUs together: (all, idle, stolen by other virtual machines)."""
    with open("/proc/stat") as f:
        ticks = [int(x) for x in f.readline().split()[1:]]
    second = os.sysconf("SC_CLK_TCK")
    return sum(ticks[:8]) / second, (ticks[3] + ticks[4]) / second, ticks[7] / second


def own_seconds():
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in both)


class Contention:
    """How much of the CPUs other programs and other machines take, from here on."""

    def __init__(self):
        self.begin, self.own = cpu_times(), own_seconds()

    def shares(self):
        total, idle, stolen = (b - a for a, b in zip(self.begin, cpu_times()))
        total = max(total, 1e-9)
        others = max(0.0, total - idle - stolen - (own_seconds() - self.own))
        return others / total, stolen / total


def describe_load(shares, when):
    others, stolen = shares
    crowded = others + stolen > CROWDED
    text = f"{when}: other programs used {others:.0%} of the CPUs, other virtual machines {stolen:.0%}"
    return text + (": FIGURES ARE DOUBTFUL, repeat on a quiet machine" if crowded else "")


def cpu_info():
    name, flags = platform.machine(), set()
    with open("/proc/cpuinfo") as f:
        for line in f:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    return name, [x for x in FLAGS_THAT_MATTER if x in flags]


@contextlib.contextmanager
def busy_neighbour():
    """Another process of normal priority that computes without end."""
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()
