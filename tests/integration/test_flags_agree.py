"""What is told of the flags of a command is the same everywhere, and no flag of the first table is lost."""

import re
import struct
import subprocess
import unittest

from support import BIN, ROOT, TIME_LIMIT, Case, new_folder

COMMANDS = ("run", "batch", "serve", "serve-workers", "workers", "top", "tokenize", "detokenize", "doctor",
            "convert-head", "keygen", "status", "bench spec")
VERBS = ("list", "show", "resume", "rollback", "export", "import", "check", "repair", "release", "end")
ALL = ([f"tandem {c}" for c in COMMANDS] + [f"tandem session {v}" for v in VERBS] +
       ["tandem-target", "tandem-draft"])
OTHERS = ("tandem", "tandem bench step", "tandem bench kv", "tandem bench serve")
OF_PARSER = {"help", "usage", "config"}  # of the program itself, not of what it does


def said(*words):
    program = [str(BIN / words[0]), *words[1:]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=TIME_LIMIT)
    assert done.returncode == 0, done
    return done.stdout


def flags_of_help(text):
    """{name: (letter, how it takes a value)}"""
    found = re.findall(r"^ {2,6}(?:(-.), )?--([a-z0-9-]+)(\[=\S+\]|=\S+)?", text, re.M)
    return {name: (letter or "-", "optional" if value[:1] == "[" else "value" if value else "switch")
            for letter, name, value in found}


def flags_of_config(command):
    return set(re.findall(r"^(?:# )?([a-z0-9-]+):", said("tandem", "config", "--show", *command), re.M))


class Agree(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = new_folder(cls.addClassCleanup)
        for script in ("bash_completion.sh", "man_pages.sh"):
            subprocess.run([ROOT / "scripts" / script, BIN, folder / script], check=True, capture_output=True)
        cls.pages = {p.stem: p.read_text() for p in (folder / "man_pages.sh").iterdir()}
        cls.completion = (folder / "bash_completion.sh/tandem").read_text()
        cls.helps = {command: flags_of_help(said(*command.split(), "--help")) for command in (*ALL, *OTHERS)}

    def test_no_flag_of_the_first_table_is_lost(self):
        for line in (ROOT / "tests/golden/flags.txt").read_text().splitlines():
            command, flag, letter, value = re.fullmatch(r"(.*) --(\S+) (\S+) (\S+)", line).groups()
            self.assertEqual(self.helps[command].get(flag), (letter, value), line)

    def test_config_shows_the_flags_of_help(self):
        for command in ALL:
            words = command.split()
            shown = flags_of_config(words[1:] if words[0] == "tandem" else words)
            self.assertEqual(shown - OF_PARSER, set(self.helps[command]) - OF_PARSER, command)

    def test_config_shows_what_may_be_given_back_as_a_file(self):
        odd = "a\x7fb\x85\u2028\ufeff\uffff \u00e9 \U0001f600 \"\\ \t"
        for command, *flags in (
            ("run", "--show", "--tree", "--raw", "--temp", "0.12345678", "--top-p", "0.9999999"),
            ("run", "--show", "never", "--stop", odd, "--stop", "null", "--kv-memory", "3G"),
            ("batch", "--system", "x" * 5000, "--seed", str(2**63 - 1), "--max-tokens", "-1"),
            ("serve", "--system", odd, *["--logit-bias", "5-1"] * 512),
            ("tandem-draft", "--draft", "", "--replay-seed", str(2**64 - 1), "--busy-poll", "0"),
        ):
            file = self.folder / "flags.yaml"
            file.write_text(said("tandem", "config", "--show", command, *flags))
            again = said("tandem", "config", "--show", command, "--config", str(file))
            self.assertEqual(again.replace("# file\n", "# command line\n"), file.read_text())
            given = {flag for flag in flags if flag.startswith("--")}
            self.assertEqual(file.read_text().count("# command line\n"), len(given), flags[0])
            for flag, value in zip(flags, flags[1:]):
                if flag in ("--temp", "--top-p"):
                    shown = re.search(f"^{flag[2:]}: (\\S+) ", file.read_text(), re.M)[1]
                    self.assertEqual(struct.pack("f", float(shown)), struct.pack("f", float(value)), flag)
        shown = r'"a\u007Fb\u0085\u2028\uFEFF\uFFFF ' + "\u00e9 \U0001f600" + r' \u0022\u005C \u0009"'
        self.assertIn(shown, said("tandem", "config", "--system", odd))

    def test_completion_knows_the_flags_of_help(self):
        for command in (*ALL, *OTHERS):
            words = re.search(rf"^  \['{command}'\]='(.*)'$", self.completion, re.M)[1].split()
            known = {w.split("=")[0][2:]: "=" in w for w in words if w.startswith("--")}
            self.assertEqual(set(known), set(self.helps[command]), command)

    def test_manual_pages_tell_the_flags_of_help(self):
        for command in (*ALL, *OTHERS):
            page = self.pages[command.replace(" ", "-")]
            plain = re.sub(r"\\f.|\\[,/]", "", page).replace(r"\-", "-")
            told = set(re.findall(r"^\.TP\n(?:-., )?--([a-z0-9-]+)", plain, re.M))
            self.assertEqual(told, set(self.helps[command]), command)


if __name__ == "__main__":
    unittest.main()
