"""What users, files and models say reaches no terminal and no log as a control character."""

import json
import os

from command_line import OK, USAGE, Command, tandem
from support import BIN, MODEL

RAW = "a\x1b[31m\x7fb\u009b31mc\u202ed\u200fe\u2028f\u00e4\u05d0"  # U+009B is CSI; the last two are letters
SHOWN = "a^[[31m^?b\ufffd31mc\ufffdd\ufffde\ufffdf\u00e4\u05d0"
MASKED = "a?[31m?b?31mc?d?e?f\u00e4\u05d0"
ESCAPED = "a\\u001B[31m\\u007Fb\\u009B31mc\\u202Ed\\u200Fe\\u2028f\u00e4\u05d0"


class Controls(Command):
    def test_a_wrong_word_is_quoted_without_them(self):
        missing = str(self.folder / "none")
        for shown, *args in (
            (SHOWN, RAW),
            (SHOWN, "run", "-m", MODEL, "--" + RAW, "x"),
            (SHOWN, "run", "-m", MODEL, "--" + RAW + "=x", "x"),
            ("no flag -^[", "run", "-m", MODEL, "-\x1b", "x"),
            (SHOWN, "run", "-m", MODEL, "x", RAW),
            (SHOWN, "run", "--config", missing + RAW, "x"),
            (SHOWN, "status", RAW),
            (MASKED, "run", "-m", MODEL, "--kv", RAW, "x"),
        ):
            self.assertIn(shown, self.refused(USAGE, "", *args))
        for program in ("tandem-target", "tandem-draft"):
            got, _, errors = tandem("--" + RAW, program=BIN / program)
            self.assertEqual(got, USAGE)
            self.assertIn(SHOWN, errors)

    def test_a_config_file_is_quoted_without_them(self):
        file = self.folder / "flags.yaml"
        name = RAW.encode("unicode-escape").decode().replace('"', '\\"')
        for text, shown in ((f'"{name}": 1\n', SHOWN), (f'kv: "{name}"\n', MASKED)):
            file.write_text(text)
            self.assertIn(shown, self.refused(USAGE, "", "run", "--config", str(file), "x"))

    def test_a_variable_is_quoted_without_them(self):
        env = {**os.environ, "TANDEM_TEMP": RAW}
        _, _, errors = tandem("run", "-m", MODEL, "x", env=env)
        self.assertIn(f"TANDEM_TEMP={SHOWN}", errors)
        self.assertNotIn("\x1b", errors)

    def test_json_escapes_them(self):
        lines = json.dumps({"id": RAW, "prompt": RAW}).encode()
        status, out, errors = tandem("batch", "-m", MODEL, "--max-tokens", "2", "-", "-", stdin=lines)
        self.assertEqual(status, OK, errors)
        self.assertIn(f'"id":"{ESCAPED}"', out.decode())
        self.assertEqual(json.loads(out)["id"], RAW)

    def test_a_session_in_json_escapes_them(self):
        ledgers = self.folder / "one.sqlite", self.folder / "other.sqlite"
        status, _, errors = tandem("run", "-m", MODEL, "--max-tokens", "2", "--ledger", ledgers[0], RAW)
        self.assertEqual(status, OK, errors)
        exported = tandem("session", "export", "--ledger", ledgers[0], "--all")[1]
        title, escaped = RAW.replace("\x1b", " "), ESCAPED.replace("\\u001B", " ")
        self.assertIn(f'"title":"{escaped}"', exported.decode())
        status, _, errors = tandem("session", "import", "--ledger", ledgers[1], "-", stdin=exported)
        self.assertEqual(status, OK, errors)
        self.assertEqual(tandem("session", "export", "--ledger", ledgers[1], "--all")[1], exported)
        for ledger in ledgers:
            listed = tandem("session", "list", "--ledger", ledger, "--json")[1]
            self.assertIn(f'"title": "{escaped}"', listed.decode())
            self.assertEqual(json.loads(listed)[0]["title"], title)

    def test_the_log_has_none(self):
        missing = str(self.folder / RAW)
        for format, shown in (("text", MASKED), ("json", MASKED)):
            status, _, errors = tandem("run", "-m", missing, "--log-format", format, "x")
            self.assertNotEqual(status, OK)
            self.assertIn(shown, errors)
