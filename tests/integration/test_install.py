"""What `cmake --install` of a build leaves: programs that find each other, documents whose links work, manual pages."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import BIN, MODEL, ROOT, TANDEM, Case, new_folder

COMMANDS = ("run", "batch", "serve-workers", "session", "status", "tokenize", "detokenize",
            "convert-head", "doctor", "bench")
VERBS = ("list", "show", "resume", "rollback", "export", "end")


class Installed(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prefix = new_folder(cls.addClassCleanup) / "prefix"
        done = subprocess.run(["cmake", "--install", str(BIN.parent), "--prefix", str(cls.prefix)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run_installed(self, *args):
        """Without this build's programs in PATH, and from a folder of no build."""
        return subprocess.run([str(self.prefix / "bin/tandem"), *map(str, args)], capture_output=True, text=True, timeout=300,
                              cwd=self.folder, env={**os.environ, "PATH": "/usr/bin:/bin"})

    def test_programs_find_each_other(self):
        doctor = self.run_installed("doctor")
        self.assertEqual(doctor.returncode, 0, doctor.stdout)
        for worker in ("tandem-target", "tandem-draft"):
            self.assertIn(f"{self.prefix}/bin/{worker}: {worker} ", doctor.stdout)
        request = ("run", "-m", MODEL, "--max-tokens", "4", "--ledger", "none", "Hello")
        installed, built = self.run_installed(*request), subprocess.run([TANDEM, *request], capture_output=True, text=True)
        self.assertEqual((installed.returncode, installed.stdout), (0, built.stdout), installed.stderr)
        self.assertTrue(installed.stdout.strip())

    def test_one_target_builds_them(self):
        """As scripts/run.sh does, after which installing must work."""
        built = subprocess.run(["ninja", "-C", str(BIN.parent), "-t", "query", "programs"], capture_output=True, text=True).stdout
        for program in (self.prefix / "bin").iterdir():
            self.assertIn(f"bin/{program.name}\n", built)

    def test_they_need_no_library_of_a_gpu(self):
        """CUDA's driver is where a GPU is, and its runtime is in the programs: elsewhere they start as well."""
        for program in (self.prefix / "bin").iterdir():
            libraries = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
            self.assertIn("libc.so", libraries)
            self.assertNotRegex(libraries, "libcuda|libnv", program.name)

    def test_bench_is_among_them(self):
        bench = self.run_installed("bench", "step", "--help")
        self.assertEqual((bench.returncode, "--rows" in bench.stdout), (0, True), bench.stderr)

    def test_documents_and_their_links(self):
        documents = self.prefix / "share/doc/tandem"
        for name in ("LICENSE", "README.md", "docs/ARCHITECTURE.md", "wire/PROTOCOL.md"):
            self.assertEqual((documents / name).read_bytes(), (ROOT / name).read_bytes())
        for page in documents.rglob("*.md"):
            for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.name}: {link}")

    @unittest.skipUnless(shutil.which("help2man"), "help2man is not here")
    def test_a_manual_page_of_every_command(self):
        pages = {p.name: p.read_text() for p in (self.prefix / "share/man/man1").iterdir()}
        expected = {"tandem.1", "tandem-target.1", "tandem-draft.1", *(f"tandem-{c}.1" for c in COMMANDS),
                    *(f"tandem-session-{v}.1" for v in VERBS)}
        self.assertEqual(set(pages), expected)
        for name, flag in (("tandem-run.1", "max\\-tokens"), ("tandem-target.1", "orchestrator"), ("tandem-session-end.1", "delete")):
            self.assertIn(flag, pages[name])
        for name, text in pages.items():
            self.assertNotIn(str(BIN.resolve().parent), text, name)
            self.assertRegex(text, rf'\.TH {name[:-2].upper().replace("-", ".?-")} "1"', name)

    def test_without_help2man_there_are_no_pages_and_it_says_so(self):
        few = self.folder / "few"
        few.mkdir()
        for program in ("bash", "mkdir", "rm"):
            (few / program).symlink_to(pathlib.Path(shutil.which(program)).resolve())
        pages = self.folder / "pages"
        done = subprocess.run([str(few / "bash"), str(ROOT / "scripts/man_pages.sh"), str(BIN), str(pages)], capture_output=True, text=True,
                              env={"PATH": str(few)})
        self.assertEqual((done.returncode, list(pages.iterdir())), (0, []), done.stderr)
        self.assertIn("help2man", done.stderr)


if __name__ == "__main__":
    unittest.main()
