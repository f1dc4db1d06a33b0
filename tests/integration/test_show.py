"""`tandem run --show`: what came from the draft is seen, on a terminal and only there."""

import os
import pty
import re
import select
import subprocess
import unittest

from command_line import IO, OK, Command, tandem
from support import MODEL, TANDEM, TIME_LIMIT, wait_until

PROMPT = "one two three four one two three four one two three four one two"
# In lockstep the same tokens are accepted on every machine.
ARGS = ("run", "-m", MODEL, "--ledger", "none", "--pace", "lockstep", "--raw", "--max-tokens", "60", PROMPT)
LIVE = re.compile(rb"\x1b7.*?\x1b8")
LOADING = re.compile(rb"\r[a-z-]+: loading the model: [0-9 ]+%|\r\x1b\[K")  # if that takes a second
DRAFT, TARGET, RESET = b"\x1b[32m", b"\x1b[36m", b"\x1b[0m"


def on_a_terminal(*flags, both=True, **env):
    """What a terminal gets, and what a pipe in place of its stdout gets unless `both`."""
    keys, terminal = pty.openpty()
    whole = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    program = subprocess.Popen(
        [TANDEM, *ARGS, *flags],
        stdin=subprocess.DEVNULL,
        stderr=terminal,
        stdout=terminal if both else subprocess.PIPE,
        env={**whole, "TERM": "xterm", **env},
    )
    os.close(terminal)
    screen = bytearray()

    def closed():
        """Takes what is there. Nobody has the other end open any more: an error."""
        try:
            if select.select([keys], [], [], 0)[0]:
                screen.extend(os.read(keys, 65536))
        except OSError:
            return True
        return False

    wait_until(closed, lambda: screen, TIME_LIMIT)
    os.close(keys)
    out = b"" if both else program.stdout.read()
    if not both:
        program.stdout.close()
    assert program.wait(TIME_LIMIT) == OK, screen
    return LOADING.sub(b"", screen), out


class Show(Command):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        status, cls.plain, _ = tandem(*ARGS)
        assert status == OK

    def test_a_pipe_gets_the_text_alone(self):
        for flag in ("--show", "--show=auto", "--show=never"):
            status, out, errors = tandem(*ARGS, flag)
            self.assertEqual((status, out), (OK, self.plain))
            self.assertNotIn("\x1b", errors)
            self.assertNotIn("green", errors)
        self.assertIn("acceptance length", tandem(*ARGS, "--show")[2])

    def test_colours_name_the_tokens_that_the_target_accepted(self):
        status, out, errors = tandem(*ARGS, "--show=always", "--budget", "7")
        self.assertEqual(status, OK)
        self.assertEqual(re.sub(rb"\x1b\[\d+m", b"", out), self.plain)
        self.assertTrue(out.endswith(RESET), out)
        self.assertIn(DRAFT, out)
        self.assertIn(TARGET, out)
        self.assertIn("green: guessed by the draft; cyan: chosen by the target alone", errors)
        right = int(re.search(r"guessed (\d+) of", errors)[1])
        length = float(re.search(r"acceptance length ([\d.]+)", errors)[1])
        self.assertGreater(right, 0)
        self.assertAlmostEqual(length, 60 / (60 - right), delta=0.01)

    def test_a_terminal_gets_colours_and_a_live_line_that_is_erased(self):
        screen, _ = on_a_terminal("--show")
        self.assertIn(DRAFT, screen)
        lines = LIVE.findall(screen)
        gain = rb"([\d.]+ times plain decoding|plain decoding not measured yet)"
        for line in lines:
            self.assertRegex(line, rb"(tok/s|too few to time), acceptance length [\d.]+, " + gain)
        text = LIVE.sub(b"", screen)
        self.assertLessEqual(len(re.findall(rb"\x1b\[J", text)), len(lines))
        if lines:
            self.assertIn(b"\x1b[J", screen.split(lines[-1])[-1], "the last one is erased")
        shown = re.sub(rb"\x1b\[[\d;]*[A-Za-z]|\x1b[DM]", b"", text).replace(b"\r\n", b"\n")
        self.assertIn(self.plain, shown)

    def test_who_wants_no_colours_gets_none(self):
        screen, _ = on_a_terminal("--show", NO_COLOR="1")
        self.assertNotIn(DRAFT, screen)
        self.assertNotIn(TARGET, screen)
        # a single prompt shows nothing unless asked
        for flags, env in ((("--show",), {"TERM": "dumb"}), ((), {})):
            screen, _ = on_a_terminal(*flags, **env)
            self.assertNotIn(b"\x1b", screen)

    def test_an_answer_that_goes_elsewhere_is_watched_on_the_terminal(self):
        # so many tokens that their end is not here before the first of them are shown
        screen, out = on_a_terminal("--show", "--max-tokens", "300", both=False)
        self.assertNotIn(b"\x1b", out)
        self.assertTrue(out.startswith(self.plain))
        # In lockstep there may be no plain step, which the gain is measured by.
        gain, lines = rb"[\d.]+ times plain decoding|not measured yet", LIVE.findall(screen)
        self.assertGreater(len(lines), 1, screen)
        for line in lines:
            self.assertRegex(line, gain, "it is told while the answer comes")
        end = rb"[\d.]+ times plain decoding|the gain is unknown"
        self.assertRegex(LIVE.sub(b"", screen), end, "and at its end")
        self.assertIn(b"\x1b[J", screen[LIVE.search(screen).end():], "it is erased")

    def test_trees_have_what_the_figures_count(self):
        trees = self.folder / "trees.txt"
        for to in ("--tree", f"--tree={trees}"):
            status, out, errors = tandem(*ARGS, to)
            self.assertEqual((status, out), (OK, self.plain))
            text = errors if to == "--tree" else trees.read_text()
            self.assertEqual(to == "--tree", "nodes accepted (*)" in errors)
            heads = [tuple(map(int, head)) for head in re.findall(r"at \d+: (\d+) of (\d+) nodes", text)]
            right, nodes = map(int, re.search(r"guessed (\d+) of (\d+) right", errors).groups())
            self.assertEqual((sum(a for a, _ in heads), sum(n for _, n in heads)), (right, nodes))
            self.assertEqual(len(re.findall(r"(?m)^[ |]*[`|]- \* ", text)), right)
            self.assertEqual(len(re.findall(r"(?m)^[ |]*[`|]- [* ] ", text)), nodes)
            self.assertGreater(right, 0)

    def test_a_tree_that_cannot_be_written_is_an_error(self):
        status, _, errors = tandem(*ARGS, f"--tree={self.folder}/none/trees.txt")
        self.assertEqual(status, IO)
        self.assertIn("--tree", errors)

    def test_a_wrong_word_is_refused(self):
        status, _, errors = tandem(*ARGS, "--show=maybe")
        self.assertEqual(status, 2)
        self.assertIn("--show", errors)
        self.assertIn("auto", errors)


if __name__ == "__main__":
    unittest.main()
