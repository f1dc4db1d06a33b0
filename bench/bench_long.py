"""Long prompts (long_prompts.py) in scripts/bench_cpu.sh --only "long prompts" and in bench/bench_gpu.py:
what prompt lookup gains where a forward reads many keys and the answer repeats what the prompt says. Each
method reads every prompt once a repetition, which takes most of the time, so a run on a CPU that does not
name this part leaves it out."""

import copy

from bench_machine import Failure, command
from bench_pair import PLAIN, Method, Pair, Samples, speeds
from long_prompts import PROMPTS, composed

ROW = "long prompts, ngram"
ON_CPU, ON_GPU = 6000, 30000  # tokens of a prompt, chat template included
ANSWER = 192  # tokens at most: an answer ends where the model ends it
ROOM = 64  # tokens of the context beside prompt and answer
METHODS = {"plain": PLAIN, "ngram": Method("ngram")}


class LongPair(Pair):
    """Answers may be too short to time: they are left out, and the others count."""

    answers = Pair.answers_of_any_length


def at_length(run, wanted):
    """The same run with a context for such prompts."""
    other = copy.copy(run)
    other.flags = (*run.flags, "--ctx", wanted + ANSWER + ROOM)
    return other


def tokens_of(run, text):
    """How many there are, without a chat template."""
    return len(command([run.bin / "tandem", "tokenize", "-m", run.model], given=text).stdout.split())


def requests(pair, prompts, wanted):
    """{name: line of IN}, each of the wanted length with its chat template."""
    word = {"id": "word", "messages": [{"role": "user", "content": "Hello"}]}
    lines, _ = pair.answers([word], 1, PLAIN)
    template = len(lines["word"]["prompt_ids"]) - tokens_of(pair.o, "Hello")
    texts = {p.name: composed(p, wanted, lambda text: template + tokens_of(pair.o, text)) for p in prompts}
    return {i: {"id": i, "messages": [{"role": "user", "content": text}]} for i, text in texts.items()}


def measure_long(run, table, work, wanted, size, turns):
    """size: repetitions, and how many prompts of each task. The methods take turns at each task."""
    pair, samples, found = LongPair(at_length(run, wanted), work), Samples(), {name: {} for name in METHODS}
    tasks = first_of_each_task(size["each"])
    prompts = sum(tasks.values(), [])
    lines = requests(pair, prompts, wanted)
    for i in range(size["repetitions"]):
        for task in tasks.values():
            for name in turns(METHODS, i):  # plain decoding is the first
                new = answers(pair, [lines[p.name] for p in task], METHODS[name], found["plain"])
                found[name].update(new)
                samples.add(name, speeds(new))
    tell(run, table, samples, found, prompts)


def answers(pair, lines, method, plain):
    if not all(line["id"] in plain for line in lines):
        return pair.answers(lines, ANSWER, method)[0]
    return pair.checked(lines, ANSWER, method, {i: r["token_ids"] for i, r in plain.items()})[0]


def first_of_each_task(each):
    tasks = {}
    for p in PROMPTS:
        tasks.setdefault(p.task, []).append(p)
    return {task: prompts[:each] for task, prompts in tasks.items()}


def tell(run, table, samples, found, prompts):
    timed = [p for p in prompts if all(all(samples.of[name][p.name]) for name in METHODS)]
    if 2 * len(timed) < len(prompts):
        raise Failure(f"only {len(timed)} of {len(prompts)} answers are long enough to time")
    groups = {"all": {p.name for p in timed}}
    for p in timed:
        groups.setdefault(p.task, set()).add(p.name)
    groups.update({f"{p.task}, {p.name}": {p.name} for p in timed})
    ids = groups["all"]
    lengths = [len(found["plain"][i]["prompt_ids"]) for i in ids]
    against = (f"plain, {samples.speed('plain', ids):.1f} tok/s; {len(ids)} of {len(prompts)} answers, after "
               f"{min(lengths):,} to {max(lengths):,} tokens")
    table.set(ROW, samples.speed("ngram", ids), against, samples.ratio("ngram", "plain", ids))
    head = ("task", "answers", "tokens", "plain tok/s", "ngram tok/s", "over plain", "tokens a forward")
    lines = [(name, *figures(samples, found["ngram"], ids)) for name, ids in groups.items()]
    run.details.append(("Prompt lookup in long prompts", [head, *lines]))


def figures(samples, lines, ids):
    tokens = sum(len(lines[i]["token_ids"]) for i in ids)
    forwards = sum(lines[i]["stats"]["forwards"] for i in ids)
    return (len(ids), tokens, f"{samples.speed('plain', ids):.1f}", f"{samples.speed('ngram', ids):.1f}",
            f"{samples.ratio('ngram', 'plain', ids):.2f}", f"{tokens / forwards:.2f}")
