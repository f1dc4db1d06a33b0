"""Clients of the OpenAI API that are no part of tandem, unchanged, against a server: one line a check.

    python3 check_clients.py URL KEY     URL such as http://127.0.0.1:8080

Run by scripts/check_api.sh, which installs them. Ends with 1 when a check failed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import langchain_core.messages
import langchain_openai
import litellm
import openai

MESSAGES = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "max_tokens": 24}


def same(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"


class OpenAi:
    def __init__(self, url, key):
        self.make = lambda key: openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
        self.client = self.make(key)
        self.model = self.client.models.list().data[0].id

    def chat(self, **more):
        return self.client.chat.completions.create(model=self.model, messages=MESSAGES, **{**GREEDY, **more})

    def check_models(self):
        same([m.id for m in self.client.models.list()], [self.model])
        same(self.client.models.retrieve(self.model).id, self.model)

    def check_chat_with_usage(self):
        answer = self.chat()
        assert answer.choices[0].message.content
        same(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        assert answer._request_id

    def check_stream_with_usage(self):
        whole = self.chat()
        events = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.delta.content or "" for e in events for c in e.choices)
        same(text, whole.choices[0].message.content)
        same(events[-1].usage.total_tokens, whole.usage.total_tokens)

    def check_cut_stream_goes_on(self):
        text_of = lambda events: "".join(c.delta.content or "" for e in events for c in e.choices)
        whole = text_of(self.chat(stream=True, temperature=1, seed=5))
        with self.chat(stream=True, temperature=1, seed=5) as stream:
            begun = [next(stream), next(stream)]
        rest = self.chat(stream=True, temperature=1, seed=5,
                         extra_headers={"Last-Event-ID": begun[-1].event_id})
        same(text_of(begun) + text_of(rest), whole)

    def check_completion_with_logprobs(self):
        answer = self.client.completions.create(model=self.model, prompt="One, two,", logprobs=2, **GREEDY)
        same("".join(answer.choices[0].logprobs.tokens), answer.choices[0].text)

    def check_stop(self):
        word = self.chat().choices[0].message.content.split()[3]
        choice = self.chat(stop=[word]).choices[0]
        assert word not in choice.message.content
        same(choice.finish_reason, "stop")

    def check_n(self):
        choices = self.chat(n=3, temperature=1, seed=5).choices
        same([c.index for c in choices], [0, 1, 2])

    def check_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        same({len(t.top_logprobs) for t in content}, {3})

    def check_own_fields(self):
        answer = self.chat(extra_body={"speculation": {"enabled": False}})
        same(answer.usage.speculation["enabled"], False)

    def check_errors(self):
        try:
            self.chat(temperature=-1)
        except openai.BadRequestError as e:
            same(e.param, "temperature")
        else:
            raise AssertionError("no error")

    def check_wrong_key(self):
        try:
            self.make("wrong").models.list()
        except openai.AuthenticationError:
            return
        raise AssertionError("no error")


class LiteLlm:
    def __init__(self, url, key):
        self.fixed = {"model": "openai/any", "messages": MESSAGES, "api_base": url + "/v1"}
        self.key = key

    def chat(self, **more):
        return litellm.completion(**{**self.fixed, "api_key": self.key, **GREEDY, **more})

    def check_chat_with_usage(self):
        answer = self.chat()
        assert answer.choices[0].message.content and answer.usage.completion_tokens

    def check_stream_with_usage(self):
        whole = self.chat()
        events = list(self.chat(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.delta.content or "" for e in events for c in e.choices)
        same(text, whole.choices[0].message.content)
        told = [e.usage for e in events if getattr(e, "usage", None)]
        same(told[-1].total_tokens, whole.usage.total_tokens)

    def check_completion(self):
        answer = litellm.text_completion(model="text-completion-openai/any", prompt="One, two,", **GREEDY,
                                         api_base=self.fixed["api_base"], api_key=self.key)
        assert answer.choices[0].text

    def check_stop(self):
        word = self.chat().choices[0].message.content.split()[3]
        assert word not in self.chat(stop=[word]).choices[0].message.content

    def check_n(self):
        same(len(self.chat(n=2, temperature=1).choices), 2)

    def check_logprobs(self):
        assert self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content

    def check_errors(self):
        try:
            self.chat(temperature=-1)
        except litellm.BadRequestError:
            return
        raise AssertionError("no error")

    def check_wrong_key(self):
        try:
            self.chat(api_key="wrong")
        except litellm.AuthenticationError:
            return
        raise AssertionError("no error")


class LangChain:
    def __init__(self, url, key):
        self.make = lambda key=key, **more: langchain_openai.ChatOpenAI(
            base_url=url + "/v1", api_key=key, model="any", max_retries=0, **{**GREEDY, **more})

    def check_chat_with_usage(self):
        answer = self.make().invoke("Name three colours.")
        assert answer.content and answer.usage_metadata["output_tokens"]

    def check_stream_with_usage(self):
        whole = self.make().invoke("Name three colours.")
        parts = list(self.make(stream_usage=True).stream("Name three colours."))
        same("".join(p.content for p in parts), whole.content)
        same([p.usage_metadata for p in parts if p.usage_metadata][-1]["total_tokens"],
             whole.usage_metadata["total_tokens"])

    def check_stop(self):
        word = self.make().invoke("Name three colours.").content.split()[3]
        assert word not in self.make().invoke("Name three colours.", stop=[word]).content

    def check_n(self):
        messages = [langchain_core.messages.HumanMessage("Name a colour.")]
        same(len(self.make(n=2, temperature=1).generate([messages]).generations[0]), 2)

    def check_logprobs(self):
        answer = self.make(logprobs=True, top_logprobs=2).invoke("Name three colours.")
        assert answer.response_metadata["logprobs"]["content"]

    def check_errors(self):
        try:
            self.make(temperature=-1).invoke("x")
        except openai.BadRequestError:
            return
        raise AssertionError("no error")

    def check_wrong_key(self):
        try:
            self.make(key="wrong").invoke("x")
        except openai.AuthenticationError:
            return
        raise AssertionError("no error")


class Llm:
    """The `llm` program, told of us in extra-openai-models.yaml."""

    def __init__(self, url, key):
        self.folder = tempfile.TemporaryDirectory()
        self.key = key
        chat = {"model_id": "here", "model_name": "any", "api_base": url + "/v1", "api_key_name": "here"}
        models = [chat, {**chat, "model_id": "text", "completion": True}]
        file = pathlib.Path(self.folder.name, "extra-openai-models.yaml")
        file.write_text(json.dumps(models))  # is YAML too

    def run(self, *arguments, key=None, model="here"):
        program = pathlib.Path(sys.executable).parent / "llm"
        fixed = [program, "-m", model, "--key", key or self.key, "-o", "temperature", "0"]
        return subprocess.run([*fixed, *arguments], env={**os.environ, "LLM_USER_PATH": self.folder.name},
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def check_chat_and_stream(self):
        ask = lambda *flags: self.run("-o", "max_tokens", "24", *flags, "Name three colours.")
        streamed, whole = ask(), ask("--no-stream")
        assert whole.returncode == 0 and whole.stdout.strip(), whole.stderr
        same(streamed.stdout, whole.stdout)

    def check_usage(self):
        assert "Token usage" in self.run("-o", "max_tokens", "8", "--usage", "Hi.").stderr

    def check_completion(self):
        done = self.run("-o", "max_tokens", "8", "One, two,", model="text")
        assert done.returncode == 0 and done.stdout.strip(), done.stderr

    def check_wrong_key(self):
        done = self.run("x", key="wrong")
        assert done.returncode and "wrong API key" in done.stderr, done.stderr


class Curl:
    def __init__(self, url, key):
        self.url, self.key = url, key

    def ask(self, path, body=None, key=None):
        data = ["-d", json.dumps(body)] if body else []
        command = ["curl", "-sSN", "-H", f"Authorization: Bearer {key or self.key}", *data, self.url + path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def check_models(self):
        same(json.loads(self.ask("/v1/models"))["object"], "list")

    def check_chat_and_stream(self):
        body = {"messages": MESSAGES, **GREEDY}
        whole = json.loads(self.ask("/v1/chat/completions", body))["choices"][0]["message"]["content"]
        lines = self.ask("/v1/chat/completions", {**body, "stream": True}).split("\n\n")
        same(lines[-2], "data: [DONE]")
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-2]]
        same("".join(d.get("content", "") for d in deltas), whole)

    def check_wrong_key(self):
        same(json.loads(self.ask("/v1/models", key="wrong"))["error"]["type"], "authentication_error")


def main(url, key):
    failed = total = 0
    for client in (OpenAi, LiteLlm, LangChain, Llm, Curl):
        one = client(url, key)
        for name in [n for n in vars(client) if n.startswith("check_")]:
            total += 1
            try:
                getattr(one, name)()
                said = "ok"
            except Exception as e:  # whatever a client raises is what its user would see
                failed += 1
                said = f"FAILED: {type(e).__name__}: {e}"
            print(f"{client.__name__:10} {name[6:].replace('_', ' '):26} {said}", flush=True)
    print(f"{total - failed} of {total} work")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
