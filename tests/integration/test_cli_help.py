"""`tandem --version` and --help."""

import unittest

from command_line import OK, PROMPT, Command, answer, tandem


class Help(Command):
    def test_version_names_commit_and_numerics(self):
        status, out, _ = tandem("--version")
        text = out.decode()
        self.assertEqual(status, OK)
        for program in ("tandem ", "tandem-target ", "tandem-draft "):
            self.assertRegex(text, rf"(?m)^{program}\d+\.\d+\.\d+ \(([0-9a-f]{{12}}|unknown)\)")
        self.assertEqual(text.count("(" + text.split("(")[1].split(")")[0] + ")"), 3)
        self.assertIn("numerics " + answer(PROMPT, "--max-tokens", "1")["numerics_id"] + "\n", text)

    def test_every_command_has_help(self):
        status, out, _ = tandem("--help")
        self.assertEqual(status, OK)
        for word in (
            "run",
            "batch",
            "serve",
            "serve-workers",
            "tokenize",
            "detokenize",
            "convert-head",
            "doctor",
            "keygen",
            "bench",
            "Exit statuses",
            "130",
        ):
            self.assertIn(word, out.decode())
        for command in ("run", "batch", "serve", "serve-workers", "tokenize", "detokenize", "doctor"):
            for flag in ("--help", "-h"):
                status, out, _ = tandem(command, flag)
                self.assertEqual(status, OK)
                self.assertIn("--model", out.decode())
        self.assertIn("rollback", tandem("session", "-h")[1].decode())
        flags = tandem("run", "--help")[1].decode()
        for flag in (
            "draft temp top-k top-p min-p repeat-penalty seed max-tokens stop raw no-special system "
            "chat-template threads device draft-device kv-memory draft-kv-memory "
            "ctx math budget pace selfcheck json repack-cache force-single-token listen wait "
            "insecure-bind keys"
        ).split():
            self.assertIn("--" + flag, flags)


if __name__ == "__main__":
    unittest.main()
