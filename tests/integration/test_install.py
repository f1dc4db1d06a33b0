"""What `cmake --install` of a build leaves: programs that find each other, documents whose links work, manual pages."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from support import BIN, MODEL, ROOT, TANDEM, TIME_LIMIT, Case, new_folder

COMMANDS = ("run", "keygen", "batch", "serve", "serve-workers", "session", "status", "workers", "top", "tokenize", "detokenize",
            "convert-head", "config", "doctor", "bench")
VERBS = ("list", "show", "resume", "rollback", "export", "import", "end", "release", "check", "repair")


class Installed(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prefix = new_folder(cls.addClassCleanup) / "prefix"
        done = subprocess.run(["cmake", "--install", str(BIN.parent), "--prefix", str(cls.prefix)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run_installed(self, *args):
        """Without this build's programs in PATH, and from a folder of no build."""
        return subprocess.run([str(self.prefix / "bin/tandem"), *map(str, args)], capture_output=True, text=True, timeout=TIME_LIMIT,
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
                    *(f"tandem-session-{v}.1" for v in VERBS),
                    *(f"tandem-bench-{v}.1" for v in ("step", "kv", "serve", "spec"))}
        self.assertEqual(set(pages), expected)
        for name, flag in (("tandem-run.1", "max\\-tokens"), ("tandem-target.1", "orchestrator"), ("tandem-session-end.1", "delete")):
            self.assertIn(flag, pages[name])
        for name, text in pages.items():
            self.assertNotIn(str(BIN.resolve().parent), text, name)
            self.assertRegex(text, rf'\.TH {name[:-2].upper().replace("-", ".?-")} "1"', name)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not here")
    def test_services(self):
        units = sorted((self.prefix / "lib/systemd/system").iterdir())
        self.assertEqual([u.name for u in units], ["tandem-draft.service", "tandem-target.service", "tandem.service"])
        for unit in units:
            self.assertIn(f"ExecStart={self.prefix}/bin/{unit.stem} ", unit.read_text())
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def run_well(self, *command, **more):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, **more)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "dpkg-shlibdeps is not here")
    def test_a_package_of_debian(self):
        self.run_well("cpack", "-G", "DEB", "-B", self.folder, cwd=BIN.parent)
        package, = self.folder.glob("*.deb")
        fields = self.run_well("dpkg-deb", "--field", package)
        for word in ("Package: tandem\n", "libzmq5", "libmicrohttpd12", "libyaml-0-2"):
            self.assertIn(word, fields)
        self.run_well("dpkg-deb", "--extract", package, self.folder / "root")
        for file in (self.prefix / "bin").iterdir():
            self.assertTrue((self.folder / "root/usr/bin" / file.name).exists())
        unit = (self.folder / "root/usr/lib/systemd/system/tandem.service").read_text()
        self.assertIn("\nExecStart=/usr/bin/tandem serve", unit)

    def completed(self, program, *words):
        """What bash puts in place of the last word, where the cursor is."""
        script = ('. "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); '
                  'f=$(complete -p "$1" | sed -E "s/.* -F ([^ ]+) .*/\\1/"); "$f" && printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, "bash", self.prefix / "share/bash-completion/completions" / program,
                               program, *words], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash_completes(self):
        commands = [*COMMANDS, "--help", "--version", "--list-devices"]
        self.assertEqual(sorted(self.completed("tandem", "")), sorted(COMMANDS))
        self.assertEqual(sorted(self.completed("tandem", "--")), sorted(c for c in commands if c.startswith("-")))
        self.assertEqual(self.completed("tandem", "serve-"), ["serve-workers"])
        self.assertEqual(set(self.completed("tandem", "session", "")), set(VERBS))
        self.assertEqual(self.completed("tandem", "session", "end", "--old"), ["--older-than"])
        self.assertEqual(self.completed("tandem", "bench", "s"), ["step", "serve", "spec"])
        self.assertEqual(self.completed("tandem", "run", "--kv", ""), ["static", "virtual"])
        self.assertEqual(self.completed("tandem", "run", "--pace", "=", "l"), ["lockstep"])
        self.assertEqual(self.completed("tandem", "run", "-m", ""), [])  # then bash gives names of files
        self.assertEqual(self.completed("tandem-target", "--log-l"), ["--log-level"])
        self.assertEqual(self.completed("tandem-draft", "--replay"), ["--replay-seed"])
        for command in COMMANDS:
            help = self.run_installed(command, "--help").stdout
            if command not in ("session", "bench"):
                known = re.findall(r"(?m)^ {2,6}(?:-., )?(--[a-z-]+)", help)
                self.assertEqual(self.completed("tandem", command, "--"), known)

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
