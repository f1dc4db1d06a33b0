"""What operators start tandem with: manifests, scripts, files of flags, each checked by its own tool as far
as that goes without a cluster. Services and the package: test_install.py."""

import os
import re
import shutil
import signal
import socket
import subprocess
import unittest

from command_line import TERMINATED
from support import DRAFT, MODEL, PATIENCE, ROOT, TANDEM, TARGET, TIME_LIMIT, Case, Running

PACKAGING = ROOT / "packaging"


def needs(tool):
    return unittest.skipUnless(shutil.which(tool), f"{tool} is not here")


class Packaging(Case):
    def run_well(self, *command):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=TIME_LIMIT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_service_manager_is_told(self):
        """systemd's protocol, without systemd: by a path, and by an abstract name."""
        for name in (str(self.folder / "notify"), "@" + str(self.folder)):
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(manager.close)
            manager.bind(name.replace("@", "\0"))
            manager.settimeout(PATIENCE)
            env = {**os.environ, "NOTIFY_SOCKET": name}
            fixed = "serve", "-m", MODEL, "--port", "0", "--ledger", "none"
            server = Running(self.folder, TANDEM, *fixed, env=env)
            self.addCleanup(server.close)
            self.assertEqual(manager.recv(100), b"READY=1")
            self.assertIn("ready", server.errors)
            server.signal(signal.SIGTERM)
            self.assertEqual(manager.recv(100), b"STOPPING=1")
            self.assertEqual(server.end(), TERMINATED)

    def test_files_of_flags(self):
        """Each is what its program takes: what stops it is a model, keys or an address, and no flag."""
        for program, files in (((TANDEM, "serve"), ("serve.yaml", "kubernetes/serve.yaml")),
                               ((TARGET,), ("target.yaml", "kubernetes/target-flags.yaml")),
                               ((DRAFT,), ("draft.yaml", "kubernetes/draft-flags.yaml"))):
            for file in files:
                command = [*program, "--config", str(PACKAGING / file)]
                none = f"{self.folder}/none"
                command += ["--orchestrator", "nowhere"] if program == (DRAFT,) else ["-m", f"{none}/model"]
                command += ["--keys", f"{none}/keys"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
                self.assertIn(done.returncode, (3, 4), done.stderr)
                self.assertRegex(done.stderr, f"{none}/model|no keys: {none}/keys|nowhere")

    @needs("kubectl")
    def test_manifests(self):
        text = self.run_well("kubectl", "kustomize", PACKAGING / "kubernetes")
        kinds = sorted(re.findall(r"(?m)^kind: (\w+)$", text))
        self.assertEqual(kinds, ["ConfigMap", *3 * ["Deployment"], "Namespace", "PersistentVolumeClaim",
                                 *2 * ["Service"]])
        self.assertEqual(text.count("enableServiceLinks: false"), 3)
        self.assertEqual(text.count("image: tandem:0.1.0"), 6)

    @needs("shellcheck")
    def test_scripts(self):
        scripts = [p for p in ROOT.glob("[a-z]*/**/*.sh") if p.relative_to(ROOT).parts[0] != "build"]
        scripts += [PACKAGING / "postinst", PACKAGING / "slurm/tandem.sbatch"]
        self.assertGreater(len(scripts), 10)
        self.run_well("shellcheck", "--severity=warning", *scripts)

    @needs("sbatch")
    def test_slurm_takes_the_job(self):
        self.run_well("sbatch", "--test-only", PACKAGING / "slurm/tandem.sbatch", "model.gguf")

    @needs("hadolint")
    def test_dockerfile(self):
        self.run_well("hadolint", PACKAGING / "Dockerfile")


if __name__ == "__main__":
    unittest.main()
