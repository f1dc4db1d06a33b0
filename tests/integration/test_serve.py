"""`tandem serve`: the OpenAI API over real workers, asked by sockets and by Python's own client."""

import http.client
import json
import math
import os
import re
import signal
import socket
import threading
import unittest

from command_line import LONG, PROMPT, TERMINATED, USAGE, IO, answer, tandem
from support import MODEL, ROOT, TANDEM, TIME_LIMIT, Case, Running, children_of, wait_until, whole_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 40}
STORY = {"prompt": LONG[1], "temperature": 0, "max_tokens": 3000}


class Server:
    """A `tandem serve` that is ready; `tls`: the SSLContext of its clients."""

    def __init__(self, case, *flags, tls=None, env=None):
        self.tls = tls
        fixed = ("serve", "-m", MODEL, "--port", "0", "--ledger", "none")
        self.program = Running(case.folder, TANDEM, *fixed, *flags, env=env)
        case.addCleanup(self.program.close)
        wait_until(lambda: "ready" in self.errors, lambda: self.errors, seconds=TIME_LIMIT)
        self.port = int(re.search(r"https?://127.0.0.1:(\d+)", self.errors)[1])

    @property
    def errors(self):
        return self.program.errors

    def connect(self):
        if self.tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIME_LIMIT, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIME_LIMIT)

    def ask(self, method, path, body=None, headers={}):
        """(status, object, headers)"""
        c = self.connect()
        text = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        c.request(method, path, text, headers)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, json.loads(data) if data else None, dict(r.getheaders())

    def events(self, path, body):
        """The objects of a stream; the last one is "[DONE]" where it ended well."""
        c = self.connect()
        c.request("POST", path, json.dumps(dict(body, stream=True)))
        r = c.getresponse()
        assert r.status == 200 and r.getheader("Content-Type") == "text/event-stream", r.read()
        out = []
        for line in r:
            if line.startswith(b"data: "):
                out.append("[DONE]" if line.strip() == b"data: [DONE]" else json.loads(line[6:]))
        c.close()
        return out


def chat(text=PROMPT, **more):
    return {"messages": [{"role": "user", "content": text}], **GREEDY, **more}


def text_of(events):
    """{index: text} of a stream."""
    out = {}
    for e in events:
        for choice in e["choices"] if e != "[DONE]" else ():
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            out[choice["index"]] = out.get(choice["index"], "") + piece
    return out


class Serve(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server(cls._class_case(), "--sessions", "2", "--ctx", "4096")

    @classmethod
    def _class_case(cls):
        case = cls("run_nothing")
        case.setUp()
        cls.addClassCleanup(case.doCleanups)
        return case

    def run_nothing(self):
        """For the folder of all tests here."""

    def refused(self, status, phrase, method, path, body=None):
        got, object, headers = self.server.ask(method, path, body)
        self.assertEqual(got, status, object)
        self.assertEqual(set(object["error"]), {"message", "type", "param", "code"})
        self.assertIn(phrase, object["error"]["message"])
        return object["error"], headers

    @whole_model
    def test_a_chat_is_answered_as_by_run(self):
        told = answer("--temp", "0", "--max-tokens", "40", "--ledger", "none", PROMPT)
        status, got, _ = self.server.ask("POST", CHAT, chat())
        self.assertEqual((status, got["object"]), (200, "chat.completion"))
        choice = got["choices"][0]
        self.assertEqual((choice["index"], choice["logprobs"]), (0, None))
        self.assertEqual(choice["finish_reason"], told["finish_reason"])
        self.assertEqual(choice["message"], {"role": "assistant", "content": told["text"], "refusal": None})
        usage = got["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (told["prompt_tokens"], 40))
        self.assertEqual(usage["total_tokens"], told["prompt_tokens"] + 40)
        self.assertEqual(usage["speculation"]["method"], "eagle3,ngram")

    def test_speculation_changes_no_text(self):
        filtered = {"temperature": 1, "seed": 8, "top_p": 0.9, "top_k": 40}
        counted = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "logit_bias": {"28": -100, "30": 2}}
        for sampling in ({}, {"temperature": 0.8, "seed": 7}, filtered, counted, {**filtered, **counted}):
            on = self.server.ask("POST", CHAT, chat(**sampling))[1]
            off = self.server.ask("POST", CHAT, chat(**sampling, speculation={"enabled": False}))[1]
            self.assertEqual(on["choices"], off["choices"])
            on, off = (a["usage"]["speculation"] for a in (on, off))
            self.assertEqual((on["enabled"], off["enabled"], off["draft_tokens"]), (True, False, 0))

    def test_an_answer_follows_its_schema(self):
        """With and without speculation, and sampled too."""
        likes = {"type": "array", "items": {"enum": ["tea", "code", "rain"]}, "minItems": 1, "maxItems": 3}
        name, age = {"type": "string", "maxLength": 12}, {"type": "integer"}
        person = {"name": name, "age": age, "likes": likes}
        schema = {"type": "object", "properties": person, "required": list(person)}
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        told = {"temperature": 0.7, "seed": 6, "logprobs": True}
        for sampling in ({}, {"temperature": 1, "seed": 5, "top_k": 30}, told):
            body = chat("Describe Anna as JSON.", response_format=form, **dict(sampling, max_tokens=120))
            on = self.server.ask("POST", CHAT, body)[1]
            off = self.server.ask("POST", CHAT, dict(body, speculation={"enabled": False}))[1]
            self.assertEqual(on["choices"], off["choices"])
            choice = on["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            got = json.loads(choice["message"]["content"])
            self.assertEqual(list(got), list(person))
            self.assertTrue(isinstance(got["age"], int) and len(got["name"]) <= 12, got)
            self.assertTrue(0 < len(got["likes"]) <= 3 and set(got["likes"]) <= {"tea", "code", "rain"}, got)

    def test_an_answer_follows_its_grammar(self):
        rules = 'root ::= " " ("maybe" | "never")+ [!]{3}'
        body = dict(GREEDY, prompt="Is the sky blue? Answer:", grammar=rules)
        got = self.server.ask("POST", TEXT, body)[1]["choices"][0]
        self.assertRegex(got["text"], r"^ (maybe|never)+!!!$")
        self.assertEqual(text_of(self.server.events(TEXT, body)), {0: got["text"]})
        form = {"type": "json_object"}
        cut = self.server.ask("POST", CHAT, chat("JSON, please", response_format=form))[1]["choices"][0]
        self.assertEqual(cut["message"]["content"][0], "{")
        self.refused(400, "line 1: a ( is not closed", "POST", TEXT, dict(body, grammar="root ::= ("))
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a+"}}}
        error, _ = self.refused(400, '"pattern" is not supported', "POST", CHAT, chat(response_format=form))
        self.assertEqual(error["param"], "response_format")

    def test_a_stream_says_what_the_whole_answer_says(self):
        for path, body in ((CHAT, chat()), (TEXT, dict(GREEDY, prompt="The capital of France is"))):
            whole = self.server.ask("POST", path, body)[1]
            events = self.server.events(path, dict(body, stream_options={"include_usage": True}))
            self.assertEqual(events[-1], "[DONE]")
            *chunks, usage = events[:-1]
            self.assertEqual(usage["choices"], [])
            self.assertEqual(usage["usage"]["total_tokens"], whole["usage"]["total_tokens"])
            self.assertEqual(len({e["id"] for e in chunks}), 1)
            self.assertNotIn("usage", chunks[0])
            self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks].count("length"), 1)
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            said = whole["choices"][0]
            self.assertEqual(text_of(chunks)[0], said["message"]["content"] if path == CHAT else said["text"])

    def test_several_choices_have_their_own_random_numbers(self):
        body = chat(temperature=1, seed=3, n=3)
        whole = self.server.ask("POST", CHAT, body)[1]
        texts = [c["message"]["content"] for c in whole["choices"]]
        self.assertEqual([c["index"] for c in whole["choices"]], [0, 1, 2])
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(text_of(self.server.events(CHAT, body)), dict(enumerate(texts)))
        alone = self.server.ask("POST", CHAT, chat(temperature=1, seed=3))[1]["choices"][0]
        self.assertEqual(alone["message"]["content"], texts[0])

    def test_prompts_of_text_and_of_ids(self):
        text = "The capital of France is"
        ids = json.loads(tandem("tokenize", "-m", MODEL, "--json", stdin=text.encode())[1])["token_ids"]
        by_text = self.server.ask("POST", TEXT, dict(GREEDY, prompt=text))[1]["choices"]
        for prompt in (ids, [text], [ids]):
            got = self.server.ask("POST", TEXT, dict(GREEDY, prompt=prompt))[1]
            self.assertEqual(got["choices"], by_text)
        body = dict(GREEDY, prompt=text, echo=True)
        whole = self.server.ask("POST", TEXT, body)[1]["choices"][0]["text"]
        self.assertEqual(whole, text + by_text[0]["text"])
        self.assertEqual(text_of(self.server.events(TEXT, body))[0], whole)

    def test_several_prompts_are_answered_as_each_alone(self):
        ids = self.server.ask("POST", "/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
        prompts = ["The capital of France is", ids, "One, two,"]
        body = {"n": 2, "seed": 7, "max_tokens": 12, "echo": True, "logprobs": 0}
        alone = [self.server.ask("POST", TEXT, dict(body, prompt=p))[1] for p in prompts]
        whole = self.server.ask("POST", TEXT, dict(body, prompt=prompts))[1]
        choices = [dict(c, index=2 * i + c["index"]) for i in range(3) for c in alone[i]["choices"]]
        self.assertEqual(whole["choices"], choices)
        self.assertTrue(choices[5]["text"].startswith(prompts[2]))
        for field in ("prompt_tokens", "completion_tokens"):
            self.assertEqual(whole["usage"][field], sum(a["usage"][field] for a in alone))
        texts = text_of(self.server.events(TEXT, dict(body, prompt=prompts)))
        self.assertEqual(texts, {c["index"]: c["text"] for c in choices})

    def test_the_answer_ends_before_a_stop_string(self):
        whole = self.server.ask("POST", CHAT, chat())[1]["choices"][0]["message"]["content"]
        word = whole.split()[8]
        for stop in (word, ["never said", word]):
            choice = self.server.ask("POST", CHAT, chat(stop=stop))[1]["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertEqual(choice["message"]["content"], whole[: whole.index(word)])

    def test_parts_of_text_and_fields_that_nobody_knows(self):
        plain = self.server.ask("POST", CHAT, chat())[1]["choices"]
        parts = chat(user="me", metadata={"a": 1}, store=False, stop=None, seed=None, n=None)
        parts["messages"][0]["content"] = [{"type": "text", "text": t} for t in (PROMPT[:5], PROMPT[5:])]
        self.assertEqual(self.server.ask("POST", CHAT, parts)[1]["choices"], plain)

    def test_logprobs_of_a_chat(self):
        lockstep = Server(self, "--pace", "lockstep")
        sampled = {"temperature": 0.8, "seed": 7, "presence_penalty": 1, "logit_bias": {"28": -100}}
        for sampling in ({}, sampled):
            body = chat(**sampling, logprobs=True, top_logprobs=20)
            plain = self.server.ask("POST", CHAT, chat(**sampling))[1]["choices"][0]
            on = lockstep.ask("POST", CHAT, body)[1]
            off = self.server.ask("POST", CHAT, dict(body, speculation={"enabled": False}))[1]
            if not sampling:
                self.assertGreater(on["usage"]["speculation"]["accepted_tokens"], 0)
            self.assertEqual(on["choices"], off["choices"])  # to the last digit
            choice = on["choices"][0]
            self.assertEqual(choice["message"], plain["message"])
            told = choice["logprobs"]["content"]
            self.assertEqual(len(told), 40)
            self.assertEqual(b"".join(bytes(t["bytes"]) for t in told).decode(), choice["message"]["content"])
            for t in told:
                best = t["top_logprobs"]
                self.assertEqual(len(best), 20)
                values = [b["logprob"] for b in best]
                self.assertEqual(values, sorted(values, reverse=True))
                self.assertLess(sum(map(math.exp, values)), 1 + 1e-4)
                if not sampling:  # before penalties and noise the likeliest is what is chosen
                    self.assertEqual((best[0]["token"], best[0]["logprob"]), (t["token"], t["logprob"]))
            streamed = [e["choices"][0] for e in self.server.events(CHAT, body)[:-1]]
            self.assertEqual([t for c in streamed if c["logprobs"] for t in c["logprobs"]["content"]], told)
            for c in streamed:  # each event has those of its text
                content = b"".join(bytes(t["bytes"]) for t in (c["logprobs"] or {"content": []})["content"])
                self.assertEqual(content.decode(), c["delta"].get("content", ""))

    def test_logprobs_of_a_completion(self):
        body = dict(GREEDY, prompt="The capital of France is", echo=True, logprobs=2)
        choice = self.server.ask("POST", TEXT, body)[1]["choices"][0]
        told = choice["logprobs"]
        self.assertEqual({len(v) for v in told.values()}, {40})
        keys = "tokens", "text_offset", "token_logprobs", "top_logprobs"
        for token, at, own, best in zip(*map(told.get, keys)):
            self.assertEqual(choice["text"][at: at + len(token)], token)
            self.assertEqual((len(best), best[token], max(best.values())), (2, own, own))
        streamed = [e["choices"][0]["logprobs"] for e in self.server.events(TEXT, body)[:-1]]
        for key in told:
            self.assertEqual([v for l in streamed if l for v in l[key]], told[key])
        bare = self.server.ask("POST", TEXT, dict(body, logprobs=0))[1]["choices"][0]["logprobs"]
        self.assertEqual(bare["token_logprobs"], told["token_logprobs"])
        self.assertEqual(bare["top_logprobs"], [None] * 40)

    @whole_model
    def test_logprobs_end_with_the_text(self):
        whole = self.server.ask("POST", CHAT, chat(logprobs=True))[1]["choices"][0]
        word = whole["message"]["content"].split()[8]
        choice = self.server.ask("POST", CHAT, chat(logprobs=True, stop=word))[1]["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertEqual(content, whole["logprobs"]["content"][:len(content)])
        text = "".join(t["token"] for t in content)
        self.assertTrue(text.startswith(choice["message"]["content"].rstrip()))
        body = chat("Say hi.", logprobs=True, max_tokens=200)
        ended = self.server.ask("POST", CHAT, body)[1]["choices"][0]
        self.assertEqual(ended["finish_reason"], "stop")
        text = b"".join(bytes(t["bytes"]) for t in ended["logprobs"]["content"]).decode()
        self.assertEqual(text, ended["message"]["content"])  # without the end token

    def test_what_cannot_be_answered_is_refused(self):
        for path, body, phrase, param in (
            (CHAT, "{", "not JSON", None),
            (CHAT, "[]", "must be a JSON object", None),
            (CHAT, {}, "at least one message", "messages"),
            (CHAT, {"messages": [{"role": "user"}]}, "'content' of text", "messages"),
            (CHAT, {"messages": [{"content": "x"}]}, "'role' and 'content'", "messages"),
            (CHAT, chat(temperature="hot"), "must be a number", "temperature"),
            (CHAT, chat(max_tokens=0), "whole number", "max_tokens"),
            (CHAT, chat(n=99), "1 to 16", "n"),
            (CHAT, chat(stop=[5]), "must be a string", "stop"),
            (CHAT, chat(stream="yes"), "true or false", "stream"),
            (CHAT, chat(logit_bias={"5": 101}), "from -100 to 100", "logit_bias"),
            (CHAT, chat(logit_bias={"49152": 1}), "the ids of this model are 0 to 49151", None),
            (CHAT, chat(presence_penalty=-3), "from -2 to 2", "presence_penalty"),
            (CHAT, chat(tools=[{"type": "function"}]), "not supported", "tools"),
            (TEXT, dict(GREEDY), "string or an array", "prompt"),
            (TEXT, dict(GREEDY, prompt=[1, -5]), "no token id", "prompt"),
            (TEXT, dict(GREEDY, prompt="word " * 5000), "4096", None),
        ):
            error, _ = self.refused(400, phrase, "POST", path, body)
            self.assertEqual((error["type"], error["param"]), ("invalid_request_error", param), body)

    def test_tokens_of_a_text_are_those_of_the_command_line_and_go_back(self):
        text = "The capital of France is é 🦊<|im_end|>"
        flags = ("tokenize", "-m", MODEL, "--json")
        told = json.loads(tandem(*flags, stdin=text.encode())[1])
        for body in ({"content": text}, {"prompt": text, "model": "any"}):
            got = self.server.ask("POST", "/tokenize", body)[1]
            ids = told["token_ids"]
            self.assertEqual(got, {"tokens": ids, "count": len(ids), "max_model_len": 4096})
        plain = json.loads(tandem(*flags, "--no-special", stdin=text.encode())[1])["token_ids"]
        got = self.server.ask("POST", "/tokenize", {"content": text, "parse_special": False})[1]
        self.assertEqual(got["tokens"], plain)
        self.assertNotEqual(plain, told["token_ids"])
        got = self.server.ask("POST", "/tokenize", {"prompt": text, "return_token_strs": True})[1]
        self.assertEqual(got["token_strs"], told["tokens"])
        pieces = self.server.ask("POST", "/tokenize", {"content": text, "with_pieces": True})[1]["tokens"]
        self.assertEqual([p["id"] for p in pieces], told["token_ids"])
        raw = [p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces]
        self.assertEqual(b"".join(raw).decode(), text)
        self.assertTrue(any(isinstance(p["piece"], list) for p in pieces))
        back = self.server.ask("POST", "/detokenize", {"tokens": told["token_ids"]})[1]
        self.assertEqual(back, {"content": text, "prompt": text})
        self.assertEqual(self.server.ask("POST", "/tokenize", {"content": ""})[1]["tokens"], [])
        self.assertEqual(self.server.ask("POST", "/detokenize", {"tokens": []})[1]["content"], "")

    def test_tokens_of_messages_are_those_that_a_chat_counts(self):
        got = self.server.ask("POST", "/tokenize", {"messages": chat()["messages"]})[1]
        usage = self.server.ask("POST", CHAT, chat(max_tokens=1))[1]["usage"]
        self.assertEqual((got["count"], len(got["tokens"])), (usage["prompt_tokens"],) * 2)

    def test_tokens_that_are_refused(self):
        for path, body, phrase, param in (
            ("/tokenize", "[]", "must be a JSON object", None),
            ("/tokenize", {}, "must be given", "prompt"),
            ("/tokenize", {"content": 5}, "must be given", "content"),
            ("/tokenize", {"content": "x", "add_special": 1}, "true or false", "add_special"),
            ("/tokenize", {"messages": []}, "at least one message", "messages"),
            ("/detokenize", {}, "array of token ids", "tokens"),
            ("/detokenize", {"tokens": [1, 49152]}, "no token id from 0 to 49151", "tokens"),
        ):
            error, _ = self.refused(400, phrase, "POST", path, body)
            self.assertEqual(error["param"], param, body)

    def test_props_and_slots(self):
        props = self.server.ask("GET", "/props")[1]
        self.assertEqual((props["total_slots"], props["model_path"]), (2, MODEL))
        self.assertEqual((props["bos_token"], props["eos_token"]), ("<|im_start|>", "<|im_end|>"))
        self.assertIn("{% for message in messages %}", props["chat_template"])
        settings = props["default_generation_settings"]
        self.assertEqual((settings["n_ctx"], settings["params"]["temperature"]), (4096, 1))
        self.assertEqual([s["id"] for s in self.server.ask("GET", "/slots")[1]], [0, 1])
        c = self.server.connect()
        c.request("POST", TEXT, json.dumps(dict(STORY, stream=True)))
        r = c.getresponse()
        event = json.loads(r.readline()[6:])
        taken, free = self.server.ask("GET", "/slots")[1]
        c.sock.shutdown(socket.SHUT_RDWR)
        c.close()
        self.assertEqual(free, {"id": 1, "n_ctx": 4096, "is_processing": False})
        self.assertEqual((taken["is_processing"], taken["request"]), (True, event["id"]))
        self.assertGreater(taken["next_token"]["n_decoded"], 0)
        idle = lambda: not any(s["is_processing"] for s in self.server.ask("GET", "/slots")[1])
        wait_until(idle, seconds=TIME_LIMIT)

    def metrics(self):
        """{name and labels: value}"""
        c = self.server.connect()
        c.request("GET", "/metrics")
        r = c.getresponse()
        self.assertEqual(r.getheader("Content-Type"), "text/plain; version=0.0.4; charset=utf-8")
        lines = r.read().decode().splitlines()
        c.close()
        return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def test_an_answer_tells_its_acceptance(self):
        server = Server(self, "--pace", "lockstep")  # whose counts repeat
        whole = server.ask("POST", CHAT, chat())[1]
        told, usage = whole["metrics"]["speculative_decoding"], whole["usage"]["speculation"]
        steps = told["acceptance_histogram"]
        self.assertGreater(told["num_accepted_draft_tokens"], 0)
        self.assertEqual(told["num_accepted_draft_tokens"], usage["accepted_tokens"])
        self.assertEqual(told["num_draft_tokens"], usage["draft_tokens"])
        self.assertEqual(sum(steps), told["num_spec_steps"])
        self.assertEqual(sum(j * n for j, n in enumerate(steps)), told["num_accepted_draft_tokens"])
        self.assertAlmostEqual(told["mean_acceptance_length"],
                               1 + told["num_accepted_draft_tokens"] / told["num_spec_steps"])
        self.assertEqual((told["method"], told["off_reason"]), (usage["method"], usage["off_reason"]))
        last = server.events(CHAT, chat(stream=True, stream_options={"include_usage": True}))[-2]
        self.assertEqual(last["metrics"]["speculative_decoding"]["acceptance_histogram"], steps)
        several = server.ask("POST", CHAT, chat(n=2))[1]
        self.assertIsNone(several["metrics"]["speculative_decoding"])

    def test_metrics(self):
        label = '{model_name="' + os.path.basename(MODEL) + '"'
        before = self.metrics()
        usage = self.server.ask("POST", CHAT, chat(n=2))[1]["usage"]
        after = self.metrics()
        grown = lambda name, more="}": after[name + label + more] - before[name + label + more]
        self.assertEqual(grown("vllm:generation_tokens_total"), usage["completion_tokens"])
        self.assertEqual(grown("vllm:prompt_tokens_total"), 2 * usage["prompt_tokens"])
        speculation = usage["speculation"]
        self.assertEqual(grown("vllm:spec_decode_num_draft_tokens_total"), speculation["draft_tokens"])
        self.assertEqual(grown("vllm:spec_decode_num_accepted_tokens_total"), speculation["accepted_tokens"])
        ends = (grown("vllm:request_success_total", f',finished_reason="{r}"}}') for r in ("stop", "length"))
        self.assertEqual(sum(ends), 2)
        for name in ("vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"):
            self.assertEqual(grown(name + "_count"), 2)
            self.assertEqual(grown(name + "_bucket", ',le="+Inf"}'), 2)
            self.assertGreater(grown(name + "_sum"), 0)
        self.assertEqual((after[f"tandem:slots{label}}}"], after[f"tandem:target_ready{label}}}"]), (2, 1))
        self.assertEqual(after["vllm:num_requests_running" + label + "}"], 0)

    def test_the_dashboard_names_metrics_that_there_are(self):
        there = {name.split("{")[0] for name in self.metrics()}
        with open(os.path.join(ROOT, "docs/grafana.json")) as f:
            panels = json.load(f)["panels"]
        self.assertEqual(len({p["id"] for p in panels}), len(panels))
        named = set()
        for panel in panels:
            for target in panel["targets"]:
                found = set(re.findall(r"[a-z]+:\w+", target["expr"]))
                self.assertTrue(found, target)
                named |= found
        self.assertEqual(named - there, set())
        whole = lambda names: {re.sub("_(bucket|sum|count)$", "", name) for name in names}
        self.assertEqual(whole(there), whole(named))  # it leaves none out

    def test_paths_and_methods(self):
        self.refused(404, "nothing", "GET", "/v2")
        _, headers = self.refused(405, "takes POST", "GET", CHAT)
        self.assertEqual(headers["Allow"], "POST")
        status, models, _ = self.server.ask("GET", "/v1/models")
        self.assertEqual((status, models["data"][0]["id"]), (200, os.path.basename(MODEL)))
        model = models["data"][0]
        self.assertEqual(self.server.ask("GET", "/v1/models/" + model["id"])[:2], (200, model))
        self.refused(404, "no such model", "GET", "/v1/models/" + model["id"] + "x")
        self.refused(404, "nothing", "GET", "/v1/models/")
        self.assertEqual(self.server.ask("GET", "/health")[:2], (200, {"status": "ok"}))
        self.assertEqual(self.server.ask("HEAD", "/health")[:2], (200, None))
        self.assertIn("version", self.server.ask("GET", "/version")[1])

    def test_a_request_has_a_name_in_every_response_and_in_the_log(self):
        name = "X-Request-Id"
        given = lambda id, *request: self.server.ask(*request, headers={name: id})[2][name]
        for request in (("GET", "/health"), ("GET", "/v2"), ("POST", CHAT, "{"), ("OPTIONS", CHAT)):
            self.assertEqual(given("a-name", *request), "a-name")
        self.assertEqual(given("x" * 128, "GET", "/health"), "x" * 128)
        made = [given(id, "GET", "/health") for id in ("x" * 129, "two words", "caf\xe9", "")]
        made.append(self.server.ask("GET", "/health")[2][name])
        self.assertEqual(len(set(made)), 5)
        for id in made:
            self.assertRegex(id, "^req-[0-9a-f]{32}$")
        c = self.server.connect()
        c.request("POST", CHAT, json.dumps(chat(stream=True, n=2, max_tokens=3)), {name: "of-a-stream"})
        r = c.getresponse()
        self.assertEqual(r.getheader(name), "of-a-stream")
        id = json.loads(r.read().split(b"\n")[0][6:])["id"]
        c.close()
        for i in range(2):
            begun = f"request of-a-stream: session [0-9a-f]{{16}}: choice {i} of {id} begins\n"
            self.assertRegex(self.server.errors, begun)
            ended = f"of-a-stream: session [0-9a-f]{{16}}: choice {i} ended: length, 3 tokens after"
            over = lambda: re.search(ended, self.server.errors)
            wait_until(over, lambda: self.server.errors, seconds=TIME_LIMIT)

    def test_a_body_that_is_too_large_is_refused(self):
        self.refused(413, "too large", "POST", CHAT, b" " * (17 << 20))
        with socket.create_connection(("127.0.0.1", self.server.port), TIME_LIMIT) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n")
            self.assertIn(b" 413 ", s.recv(65536).split(b"\r\n")[0])

    def test_a_connection_is_used_again(self):
        c = self.server.connect()
        texts = set()
        for _ in range(3):
            c.request("POST", CHAT, json.dumps(chat(max_tokens=8)))
            texts.add(json.loads(c.getresponse().read())["choices"][0]["message"]["content"])
        c.close()
        self.assertEqual(len(texts), 1)

    def test_who_goes_away_leaves_room_for_others(self):
        """Two answers at a time are computed; four long ones are asked for, and nobody stays to read them."""
        for stream in (True, False):
            left = []
            for _ in range(4):
                s = socket.create_connection(("127.0.0.1", self.server.port), TIME_LIMIT)
                body = json.dumps(dict(STORY, stream=stream)).encode()
                head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                s.sendall(head.encode() + body)
                left.append(s)
            if stream:
                self.assertIn(b" 200 ", left[0].recv(65536).split(b"\r\n")[0])
            for s in left:
                s.close()
            status, got, _ = self.server.ask("POST", CHAT, chat(max_tokens=5))
            self.assertEqual((status, got["usage"]["completion_tokens"]), (200, 5))

    def test_more_than_there_is_room_for_waits(self):
        answers = []

        def ask():
            choice = self.server.ask("POST", CHAT, chat(max_tokens=12))[1]["choices"][0]
            answers.append(choice["message"]["content"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(TIME_LIMIT)
        self.assertEqual((len(answers), len(set(answers))), (8, 1))


def properties_of(schema):
    """All names of fields in a schema, also in those in it."""
    if not isinstance(schema, (dict, list)):
        return set()
    inner = schema.values() if isinstance(schema, dict) else schema
    names = set(schema.get("properties", ())) if isinstance(schema, dict) else set()
    return names.union(*map(properties_of, inner))


class Document(Case):
    """/openapi.json says what api.c, call_options.c and tokens_json.c do: no more and no less."""

    FOLDER = os.path.join(ROOT, "orchestrator/service/api")
    # how these sources read a field of a body, and name one in a table
    FIELD = re.compile(r'(?:field|read_int|read_float|_bool|object_get|_ids)\([^()]*(?:\([^()]*\))?[^()"]*'
                       r'"(\w+)"|\{"(\w+)",')

    def source(self, name):
        with open(os.path.join(self.FOLDER, name)) as f:
            return f.read()

    def setUp(self):
        super().setUp()
        self.document = json.loads(self.source("openapi.json"))

    def fields_of(self, name):
        return {a or b for a, b in self.FIELD.findall(self.source(name))}

    def schema(self, *names):
        return [self.document["components"]["schemas"][name] for name in names]

    def test_its_paths_are_the_routes(self):
        routes = re.findall(r'\{"([A-Z]+)", "(/[^"]*)", \w+\}', self.source("api.c"))
        told = [(m.upper(), path) for path, methods in self.document["paths"].items() for m in methods]
        self.assertEqual(sorted(told), sorted(routes))

    def test_its_bodies_are_what_is_read(self):
        told = properties_of(self.schema("Shared", "Chat", "Completion", "Message"))
        partial = (ROOT / "orchestrator/service/partial_options.c").read_text()
        self.assertEqual(told, self.fields_of("call_options.c") |
                         set(re.findall(r'"(enable_specpv|specpv_\w+)"', partial)))
        self.assertEqual(properties_of(self.schema("WorkerChange")), self.fields_of("workers_json.c"))
        told = properties_of(self.schema("Tokenize", "Detokenize"))
        self.assertEqual(told, self.fields_of("tokens_json.c") | {"prompt"})

    def test_its_references_lead_somewhere(self):
        for path in re.findall(r'"\$ref": "#/([^"]*)"', self.source("openapi.json")):
            found = self.document
            for part in path.split("/"):
                found = found[part]
        self.assertTrue(self.document["openapi"].startswith("3.1."))

    def test_the_server_gives_it(self):
        self.assertEqual(Server(self).ask("GET", "/openapi.json")[:2], (200, self.document))


class Guarded(Case):
    def ask(self, server, method, path, **headers):
        c = server.connect()
        c.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, data, dict(r.getheaders())

    def test_only_who_has_a_key_is_answered(self):
        file = os.path.join(self.folder, "keys")
        with open(file, "w") as f:
            f.write("third\n")
        server = Server(self, "--api-key", "first,second", "--api-key-file", file)
        for key in ("first", "second", "third"):
            self.assertEqual(self.ask(server, "GET", "/v1/models", Authorization=f"Bearer {key}")[0], 200)
        for headers in ({}, {"Authorization": "Bearer fourth"}, {"Authorization": "first"}):
            for path in ("/v1/models", "/metrics", "/nowhere"):
                status, data, got = self.ask(server, "GET", path, **headers)
                self.assertEqual((status, got["WWW-Authenticate"]), (401, "Bearer"))
                self.assertEqual(json.loads(data)["error"]["type"], "authentication_error")
        self.assertEqual(self.ask(server, "GET", "/health")[0], 200)

    def test_pages_of_an_origin_may_ask(self):
        server = Server(self, "--cors-origin", "https://example.org", "--api-key", "k")
        status, data, got = self.ask(server, "OPTIONS", CHAT, Origin="https://example.org")
        self.assertEqual((status, data), (204, b""))
        self.assertEqual(got["Access-Control-Allow-Origin"], "https://example.org")
        self.assertIn("POST", got["Access-Control-Allow-Methods"])
        self.assertIn("Authorization", got["Access-Control-Allow-Headers"])
        for key, status in (("k", 200), ("x", 401)):
            seen = self.ask(server, "GET", "/v1/models", Authorization=f"Bearer {key}")
            self.assertEqual(seen[0], status)
            self.assertEqual(seen[2]["Access-Control-Allow-Origin"], "https://example.org")

    def test_bad_keys(self):
        absent = str(self.folder / "absent")
        for flag, value, phrase in (("--api-key", "a,,b", "visible"), ("--api-key-file", absent, absent)):
            status, _, errors = tandem("serve", "-m", MODEL, flag, value)
            self.assertEqual(status, USAGE)
            self.assertIn(phrase, errors)


class Ends(Case):
    def test_a_killed_worker_costs_no_text(self):
        server = Server(self)
        body = dict(STORY, max_tokens=800)
        whole = server.ask("POST", TEXT, body)[1]["choices"][0]["text"]
        c = server.connect()
        c.request("POST", TEXT, json.dumps(dict(body, stream=True)))
        r = c.getresponse()
        lines = [r.readline() for _ in range(4)]
        for worker in children_of(server.program.pid):
            os.kill(worker, signal.SIGKILL)
        lines += list(r)
        self.assertIn("tandem-target died", server.errors)
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        self.assertEqual(lines[-2].strip(), b"data: [DONE]")
        self.assertEqual(text_of(events)[0], whole)

    def test_more_than_may_wait_is_refused(self):
        flags = "--sessions", "1", "--max-waiting", "1", "--api-key", "a,b", "--admin-key", "c"
        server = Server(self, *flags)
        one, other, admin = ({"Authorization": f"Bearer {key}"} for key in "abc")
        runs, waits, *beside = (server.connect() for _ in range(4))
        runs.request("POST", TEXT, json.dumps(dict(STORY, stream=True)), one)
        self.assertEqual(runs.getresponse().status, 200)
        waits.request("POST", CHAT, json.dumps(chat(max_tokens=3)), one)
        got = []

        def refused():
            got[:] = server.ask("POST", CHAT, chat(max_tokens=1), one)
            return got[0] == 429

        c = server.connect()  # the same loop has seen `waits` before it answers this
        c.request("GET", "/health")
        c.getresponse().read()
        c.close()
        self.assertTrue(refused(), got)
        self.assertEqual((got[1]["error"]["type"], got[2]["Retry-After"]), ("rate_limit_error", "1"))
        for c, headers in zip(beside, (other, admin)):  # each key's bound is its own
            c.request("POST", CHAT, json.dumps(chat(max_tokens=3)), headers)
        runs.sock.shutdown(socket.SHUT_RDWR)
        runs.close()
        for c in (waits, *beside):
            self.assertEqual(c.getresponse().status, 200)
            c.close()

    def test_none_may_wait_and_one_is_answered(self):
        server = Server(self, "--sessions", "1", "--max-waiting", "0")
        self.assertEqual(server.ask("POST", CHAT, chat(max_tokens=1))[0], 200)

    def test_a_signal_ends_streams_with_an_error(self):
        server = Server(self)
        c = server.connect()
        c.request("POST", TEXT, json.dumps(dict(STORY, stream=True)))
        r = c.getresponse()
        self.assertTrue(r.readline())
        server.program.signal(signal.SIGTERM)
        last = [line for line in r if line.startswith(b"data: ")][-1]
        self.assertIn("shutting down", json.loads(last[6:])["error"]["message"])
        self.assertEqual(server.program.end(), TERMINATED)

    def test_an_address_that_cannot_be_bound(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            status, _, errors = tandem("serve", "-m", MODEL, "--port", str(port), "--ledger", "none")
        self.assertEqual(status, IO)
        self.assertIn(f"port {port} of 127.0.0.1 is in use", errors)
        status, _, errors = tandem("serve", "-m", MODEL, "--host", "no.such.host.invalid", "--ledger", "none")
        self.assertEqual(status, USAGE)
        self.assertIn("no.such.host.invalid is no address", errors)
        self.assertEqual(tandem("serve", "-m", MODEL, "--workers", "wait")[0], USAGE)



if __name__ == "__main__":
    unittest.main()
