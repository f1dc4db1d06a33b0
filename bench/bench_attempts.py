"""Isolation in scripts/bench_cpu.sh: what fails, or takes too long, costs the rows that need its figures, and no others."""

from bench_machine import Failure, say


def reason(why):
    """One line."""
    text = str(why) if isinstance(why, Failure) else f"{type(why).__name__}: {why}"
    return " ".join(text.split())[-200:]


class Attempts:
    """Things that are measured several times, by name. One that fails is not tried again."""

    def __init__(self):
        self.failed = {}  # name: why

    def attempt(self, name, measure, *arguments):
        """What measure gives, or None when it fails, or has failed before."""
        if name in self.failed:
            return None
        try:
            return measure(*arguments)
        except Exception as why:
            self.failed[name] = reason(why)
            say(f"{name} FAILED: {reason(why)}")
            return None

    def attempt_one_of(self, group, name, measure, *arguments):
        """As attempt of "GROUP NAME", where the figures count together: the first that fails is the last that is tried."""
        if not any(failed.startswith(f"{group} ") for failed in self.failed):
            return self.attempt(f"{group} {name}", measure, *arguments)
        return None

    def check(self, *names):
        """Fails for whoever needs one that has failed."""
        for name in names:
            if name in self.failed:
                raise Failure(f"{name}: {self.failed[name]}")


def turns(things, i):
    """The things, beginning at another one each time: what else runs on the machine meets all of them alike."""
    things = list(things)
    first = i % max(1, len(things))
    return things[first:] + things[:first]


class Interleaved(Attempts):
    """[name]: what its function gave at each repetition."""

    def __init__(self, repetitions, measure):
        super().__init__()
        self.samples = {name: [] for name in measure}
        for i in range(repetitions):
            for name in turns(measure, i):
                self.samples[name].append(self.attempt(name, measure[name]))

    def __getitem__(self, name):
        self.check(name)
        return self.samples[name]


def interleave(repetitions, **measure):
    return Interleaved(repetitions, measure)
