"""Flags from a YAML file: --config FILE."""

import json
import os
import pathlib
import subprocess
import unittest

from command_line import PROMPT, USAGE, Command, answer, tandem
from support import DRAFT, MODEL, TARGET, TIME_LIMIT


class Config(Command):
    def config(self, text):
        file = pathlib.Path(self.folder, "flags.yaml")
        file.write_text(text)
        return str(file)

    def test_the_command_line_wins_over_variables_and_those_over_the_file(self):
        file = self.config(f'model: "{MODEL}"\nmax-tokens: 3 # of many\njson: true\nledger: none\n'
                           "raw: false\nseed: 12\n")

        def run(*flags, **variables):
            env = {**os.environ, **variables}
            status, out, errors = tandem("run", "--config", file, *flags, PROMPT, env=env)
            self.assertEqual(status, 0, errors)
            object = json.loads(out)
            return len(object["token_ids"]), object["seed"]

        self.assertEqual(run(), (3, 12))
        self.assertEqual(run(TANDEM_MAX_TOKENS="4"), (4, 12))
        self.assertEqual(run("--max-tokens=5", TANDEM_MAX_TOKENS="4"), (5, 12))

    def test_a_list_is_a_flag_given_several_times(self):
        whole = answer("--ledger", "none", "--max-tokens", "30", PROMPT)["text"]
        words = whole.split()
        file = self.config(f"stop: [never said, ' {words[6]}']\nledger: none\nmax-tokens: 30\n")
        self.assertEqual(answer("--config", file, PROMPT)["text"], whole[:whole.index(" " + words[6])])

    def test_specpv_has_its_own_names(self):
        file = self.config("enable_specpv: true\nspecpv_block_size: 32\nspecpv_n_sink_blocks: 3\n"
                           "specpv_n_retrieval_blocks: 40\nspecpv_n_window_blocks: 5\n"
                           "specpv_n_spec_tokens_buf: 100\nspecpv_partial_threshold: 5000\n"
                           "specpv_full_refresh_interval: 16\nspecpv_lossy: false\n")
        status, out, errors = tandem("config", "--show", "run", "--config", file)
        self.assertEqual(status, 0, errors)
        lines = out.decode().splitlines()
        for flag, value in (("", "true"), ("-block", 32), ("-sink", 3), ("-retrieval", 40), ("-window", 5),
                            ("-buffer", 100), ("-threshold", 5000), ("-refresh", 16)):
            self.assertIn(f"partial-kv{flag}: {value} # file", lines)
        self.assertNotIn("partial-kv-lossy: true # file", lines)

    def test_what_is_wrong_is_named_with_its_line(self):
        ok = "max-tokens: 3\n"
        for text, line, phrase in (
                (ok + "max-token: 3\n", 2, "there is no flag max-token: did you mean max-tokens?"),
                (ok + "ctx-size: 64\n", 2, "there is no flag ctx-size: did you mean ctx?"),
                (ok + "\n\nthreads: many\n", 4, "--threads must be a whole number from 1 to "),
                (ok + "threads: [1, 2]\n", 2, "threads must be one value, not a mapping or a list"),
                (ok + "kv: dynamic\n", 2, "--kv must be one of static, virtual, not 'dynamic'"),
                ("raw: 1\n", 1, "raw must be true or false"),
                ("raw: 'true'\n", 1, "raw must be true or false"),
                (ok + "model:\n", 2, "model has no value"),
                (ok + 'model: "a\\0b"\n', 2, "model holds a NUL character"),
                (ok + "stop: {a: b}\n", 2, "stop must be one value"),
                (ok + "seed: 1\nmax-tokens: 4\n", 3, "max-tokens stands here a second time"),
                ("partial-kv: true\nenable_specpv: true\n", 2, "partial-kv stands here a second time"),
                ("specpv_block_size: 8\n", 1, "--partial-kv-block must be a whole number from 16 to "),
                (ok + "config: other.yaml\n", 2, "a config file names no other one"),
                ("- max-tokens\n", 1, "a config file has lines such as"),
                (ok + "---\nseed: 1\n", 3, "a config file has one document"),
                (ok + "stop: [a\n", 3, "this is no YAML: ")):
            file = self.config(text)
            said = f"tandem run: {file}:{line}: {phrase}"
            errors = self.refused(USAGE, said, "run", "-m", MODEL, "--config", file, PROMPT)
            self.assertEqual(len(errors.splitlines()), 1, errors)
        none = self.folder / "none"
        phrase = f"cannot read the config file {none}: No such file"
        self.refused(USAGE, phrase, "run", f"--config={none}", PROMPT)

    def test_workers_take_one(self):
        for program in (TARGET, DRAFT):
            file = self.config("orchestrator: nowhere\nsessions: none\n")
            command = [program, "--config", file]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
            self.assertEqual(done.returncode, USAGE)
            self.assertTrue(done.stderr.startswith(f"{pathlib.Path(program).name}: {file}:2: "), done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_an_empty_file_says_nothing(self):
        self.refused(USAGE, "no model", "run", "--config", self.config("# nothing yet\n"), PROMPT)


if __name__ == "__main__":
    unittest.main()
