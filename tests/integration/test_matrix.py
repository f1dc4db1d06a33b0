"""Speculation changes nothing, over every architecture and cache layout, greedy and seeded, with one session and many among
long prompts: every answer is the one of plain decoding alone, and tokens were accepted."""

import json
import random
import unittest

from models import make_head
from support import END_TOKEN, ROOT, SUBSET, Case, batch, tell, thorough, total

FOLDERS = sorted((ROOT / "tests/golden/arch").iterdir())
MODELS = [f for f in FOLDERS if f.name in ("mistral-window", "qwen3")] if SUBSET else FOLDERS
VOCABULARY = 512
TOKENS = 40
LENGTHS = [1, 2, 15, 16, 17, 31, 33, 48, 5, 64, 7, 20, 300, 90, 3, 12, 420, 16, 32, 8]  # about blocks and chunks, and two long
GREEDY, SEEDED = (), ("--temp", "0.8", "--seed", "11", "--top-k", "40", "--repeat-penalty", "1.1",
                          "--presence-penalty", "0.5", "--frequency-penalty", "0.3", "--logit-bias", "7+3")
LAYOUTS = ("static", "virtual")


def records():
    """The first prompts of some begin alike, so that a cache may share them."""
    rng = random.Random(5)
    common = [rng.randrange(3, VOCABULARY) for _ in range(48)]
    made = []
    for i, length in enumerate(LENGTHS):
        own = [rng.randrange(3, VOCABULARY) for _ in range(length)]
        made.append({"id": i, "prompt_ids": (common + own)[:length] if i % 3 == 0 else own})
    return made


def head_of(model, folder):
    """A draft head that reads all of the model's last states. It knows nothing, but eight guesses of 512 are right now and then."""
    shape = json.loads((model / "config.json").read_text())
    layers = shape["num_hidden_layers"]
    return str(make_head(folder, shape["hidden_size"], VOCABULARY, heads=(2, 1), taps=(1, layers - 1, layers)))


@thorough
class Matrix(Case):
    def run_with(self, model, *flags):
        return batch(self.folder, records(), "--max-tokens", str(TOKENS), "--ctx", "512", *flags, model=model)

    def same(self, plain, run, about, accepted):
        for key, a in run.answers.items():
            self.assertEqual(a["token_ids"], plain.answers[key]["token_ids"], f"{about}: {key}")
            s = a["stats"]
            self.assertEqual(len(a["token_ids"]), s["forwards"] + s["accepted_tokens"], f"{about}: {key}")
        if accepted:
            self.assertGreater(total(run.answers, "accepted_tokens"), 0, about)
        return total(run.answers, "accepted_tokens")

    def over(self, model, sampling):
        plain = self.run_with(model, "--draft", "none", "--sessions", "1", "--kv", "static", *sampling)
        replay = f"replay:{plain.path}:0.8:0.3"
        head = "-md", head_of(model, self.folder / f"head-{model.name}"), "--pace", "lockstep", "--budget", "7"
        heads = (1, True, ("--draft", "eagle3", *head)), (16, True, ("--draft", "eagle3,ngram", *head))  # by turns
        whole, most = [], 0
        for layout in LAYOUTS:
            for sessions, accepted, draft in ((1, True, ("--draft", replay, "--pace", "lockstep")),
                                              (16, True, ("--draft", replay, "--pace", "lockstep")),
                                              (16, False, ("--draft", replay)),  # so many seldom gain by nodes
                                              (4, True, ("-md", str(model), "--pace", "lockstep")),
                                              heads[(layout == "static") == (sampling == GREEDY)],
                                              (16, False, ("--draft-layers", "1")),  # free pace: so small a target seldom waits
                                              (16, False, ("--draft", "ngram")),
                                              (16, False, ("--draft", "none"))):
                about = f"{model.name}, {layout}, {sessions} sessions, {draft[0]} {draft[1][:12]}"
                run = self.run_with(model, *draft, "--sessions", str(sessions), "--kv", layout, *sampling)
                whole.append(self.same(plain, run, about, accepted))
                most = max(most, run.counters["engine"]["forwards"] / max(1, run.counters["engine"]["batches"]))
        tell(f"{model.name}: accepted {whole}; at most {most:.1f} sessions a forward")

    def test_greedy(self):
        for model in MODELS:
            with self.subTest(model=model.name):
                self.over(model, GREEDY)

    def test_seeded(self):
        for model in MODELS:
            with self.subTest(model=model.name):
                self.over(model, SEEDED)


if __name__ == "__main__":
    unittest.main()
