"""`tandem doctor`."""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

from command_line import FAILED, OK, USAGE, WORKER, Command, tandem, with_draft_known
from models import other_vocabulary
from support import MODEL, TANDEM, TARGET, TIME_LIMIT, make_keys, whole_model


class Doctor(Command):
    def test_doctor_finds_nothing_wrong(self):
        status, out, errors = tandem("doctor", "-m", MODEL)
        self.assertEqual(status, OK, out.decode() + errors)
        for word in (
            "cpu",
            "memory",
            "ipc",
            "tcp",
            "tandem-target",
            "tandem-draft",
            "vocabulary 49152",
            "chatml, built in",
        ):
            self.assertIn(word, out.decode())

    def test_doctor_finds_a_bad_model_and_missing_programs(self):
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUF")
        status, out, errors = tandem("doctor", "-m", str(bad))
        self.assertEqual(status, FAILED)
        self.assertIn("BAD   model", out.decode())
        alone = shutil.copy(TANDEM, self.folder)
        done = subprocess.run([alone, "doctor"], capture_output=True, env={"PATH": ""}, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, FAILED)
        self.assertEqual(done.stdout.decode().count("BAD   worker"), 2)
        status, out, errors = tandem("doctor", "--json", "-m", str(bad), "-md", str(self.folder / "none"))
        self.assertEqual(status, FAILED)
        report = json.loads(out)
        self.assertFalse(report["ok"])
        self.assertEqual([c["check"] for c in report["checks"] if not c["ok"]], ["model", "draft"])

    def doctor(self, *args):
        """{check: object} of --json, whose text is what people read."""
        status, out, errors = tandem("doctor", "--json", *args)
        report = json.loads(out)
        self.assertEqual((out.count(b"\n"), status), (1, OK if report["ok"] else FAILED), errors)
        self.assertEqual(report["ok"], all(c["ok"] for c in report["checks"]))
        lines = [
            line
            for line in tandem("doctor", *args)[1].decode().splitlines()
            if " in " not in line and "memory" not in line
        ]
        told = [f"{'ok' if c['ok'] else 'BAD':5} {c['check']:9} {c['text']}" for c in report["checks"]]
        self.assertLessEqual(set(lines), set(told))
        return {c["check"]: c for c in report["checks"]}

    @whole_model
    def test_json_says_what_the_text_says(self):
        checks = self.doctor("-m", MODEL)
        self.assertLessEqual(
            {"tandem", "cpu", "memory", "worker", "device", "ipc", "tcp", "keys", "model", "template"},
            set(checks),
        )
        self.assertEqual((checks["model"]["layers"], checks["model"]["vocabulary"]), (30, 49152))

    def test_keys_that_others_can_read(self):
        keys = make_keys(self.folder / "keys")
        self.assertIn(": orchestrator, target, draft", self.doctor("--keys", str(keys))["keys"]["text"])
        (keys / "target.key").chmod(0o644)
        self.assertIn("target.key has mode 0644", self.doctor("--keys", str(keys))["keys"]["text"])
        self.assertIn("`tandem keygen' makes them", self.doctor("--keys", str(self.folder))["keys"]["text"])

    def test_instruction_sets_are_those_of_the_kernel(self):
        """What the kernel tells of the processor is there, and it does not tell what is missing. An old
        kernel does not know every flag: what it does not tell may be there, and then passes the self-test."""
        avx2 = {"avx2", "fma", "f16c"}
        needs = {
            "cpu:avx512": avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
            "cpu:avx-vnni": avx2 | {"avx_vnni"},
            "cpu:avx2": avx2,
            "cpu:c": set(),
        }
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        has = next((set(line.split()) for line in lines if line.startswith("flags")), set())
        told = self.doctor()["device"]
        states = {name: state for name, state in told["devices"].items() if name.startswith("cpu:")}
        self.assertEqual(list(states), list(needs))
        for name, state in states.items():
            if state.startswith("missing: "):
                self.assertIn(state.split()[-1], needs[name] - has, told)
            else:
                self.assertRegex(state, "^(chosen|available): .*self-test passed in ", told)
        chosen = [name for name, state in told["devices"].items() if state.startswith("chosen: ")]
        self.assertEqual([told["chosen"]], chosen)
        there = [name for name, state in states.items() if not state.startswith("missing: ")]
        self.assertEqual(told["chosen"], there[0])
        for flags in (["--isa", "c"], ["--device", "cpu:c"], ["--isa", "c", "--device", "cpu:c"]):
            done = self.target("--list-devices", *flags)
            self.assertIn("cpu:c chosen: ", done.stdout)
            self.assertEqual((done.stdout.count(" chosen: "), done.returncode), (1, OK))

    def target(self, *flags):
        return subprocess.run([TARGET, *flags], capture_output=True, text=True)

    def test_devices_are_listed_and_wrong_ones_are_refused(self):
        status, out, _ = tandem("--list-devices")
        lines = out.decode().splitlines()
        self.assertEqual((status, sum(" chosen: " in line for line in lines)), (OK, 1))
        states = {line.split()[1] for line in lines}
        self.assertLessEqual(states, {"chosen:", "available:", "missing:"})
        done = self.target("--device", "cpu:c", "--isa", "avx2")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn("--device cpu:c and --isa avx2 (which is --device cpu:avx2) are two", done.stderr)
        done = self.target("--list-devices", "--device", "abacus")
        self.assertEqual((done.returncode, "chosen" in done.stdout), (FAILED, False))
        status, _, errors = tandem("run", "-m", MODEL, "--device", "abacus", "--ledger", "none", "hello")
        self.assertNotEqual(status, OK)
        self.assertIn("no device is called 'abacus': give one of cpu, cpu:c,", errors)

    def test_every_device_is_tried_and_one_that_computes_wrongly_is_refused(self):
        """By doctor, and when a worker starts."""
        devices = self.doctor()["device"]["devices"]
        for name, state in devices.items():
            self.assertRegex(state, "missing: |self-test passed in [0-9]+ ms$", name)
        wrong = {**os.environ, "TANDEM_FAR": "wrong=1"}
        status, out, _ = tandem("doctor", "--json", env={**wrong, "TANDEM_DEVICE": "far:cpu"})
        device = next(c for c in json.loads(out)["checks"] if c["check"] == "device")
        self.assertEqual((status, device["ok"]), (FAILED, False))
        reason = r"far:cpu:[a-z0-9-]+ computes norm with other bits than the C reference"
        self.assertRegex(device["devices"]["far:cpu"], "^refused: " + reason)
        run = ["run", "-m", MODEL, "--ledger", "none", "--max-tokens", "4"]
        status, out, errors = tandem(*run, "--device", "far:cpu", "hello", env=wrong)
        self.assertEqual((status, out), (WORKER, b""))
        self.assertRegex(errors, "tandem-target: error: " + reason)
        draft = ["--draft-layers", "4", "--draft-device", "far:cpu"]
        status, _, errors = with_draft_known(*run, *draft, "hello", env=wrong)
        self.assertEqual(status, OK)  # it is not used, and an answer needs no draft
        self.assertRegex(errors, "tandem-draft: error: " + reason)
        self.assertIn("all of it was decoded plainly: tandem-draft could not start", errors)
        self.assertEqual(tandem(*run, "--device", "far:cpu", "hello")[0], OK)

    def test_a_draft_that_fits_and_one_that_does_not(self):
        fit = self.doctor("-m", MODEL, "-md", MODEL)["fit"]
        self.assertEqual((fit["ok"], fit["partners"], fit["same_ids"]), (True, 49152, True))
        bridged = other_vocabulary(self.folder / "bridged.gguf", padding=64, misspelt=100)
        fit = self.doctor("-m", MODEL, "-md", str(bridged))["fit"]
        self.assertEqual((fit["ok"], fit["partners"], fit["same_ids"]), (True, 49152 - 100, False))
        foreign = other_vocabulary(self.folder / "foreign.gguf", misspelt=1000)
        checks = self.doctor("-m", MODEL, "-md", str(foreign))
        self.assertEqual((checks["draft"]["ok"], checks["fit"]["ok"]), (True, False))
        self.assertIn("1000 of 49", checks["fit"]["text"])  # why, as the draft's own refusal says it
        self.assertIn("not looked at", self.doctor("-md", MODEL)["fit"]["text"])

    @whole_model
    def test_a_draft_head_that_fits_and_one_that_does_not(self):
        head = str(pathlib.Path(__file__).parents[2] / "heads/smollm2-135m-instruct-eagle3.gguf")
        draft = self.doctor("-m", MODEL, "-md", head)["draft"]
        self.assertTrue(draft["ok"], draft)
        self.assertRegex(draft["text"], "fits; it can guess [0-9]+ of the model's 49152 tokens")
        self.assertIn("with -m to see", self.doctor("-md", head)["draft"]["text"])
        cut = self.folder / "cut.gguf"
        cut.write_bytes(pathlib.Path(head).read_bytes()[:1 << 20])
        self.assertFalse(self.doctor("-m", MODEL, "-md", str(cut))["draft"]["ok"])


if __name__ == "__main__":
    unittest.main()
