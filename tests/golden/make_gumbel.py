#!/usr/bin/env python3
"""Writes gumbel.json: what the sampler must answer, computed without it.

    python3 make_gumbel.py > gumbel.json

Logarithms and exponentials come from Python's decimal module (libmpdec) with 40 digits; Philox4x32-10 is written
here from the paper (Salmon et al. 2011) and checked against Random123's published answers. Cases of `pick` in which
rounding to f32 could decide are left out, so the token is the only right answer.

The `f32` fields are bits: the polynomials of common/base/sampler.c once more, every operation in double and then
rounded to f32, which is exact for + - * (a double has more than twice the bits). So they say what any language and
device must answer, while the decimal fields say how good that answer is.
"""
import json
import random
import struct
from decimal import Decimal, getcontext

getcontext().prec = 40
MASK = 0xFFFFFFFF
NEVER = Decimal("-Infinity")


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def bits(seed, choice, position, token):
    return philox([token // 4, position, choice, 0], [seed & MASK, seed >> 32])[token % 4]


def unit(x):
    return (Decimal(x >> 9) + Decimal("0.5")) / Decimal(2**23)


def gumbel(seed, choice, position, token):
    return -(-unit(bits(seed, choice, position, token)).ln()).ln()


def as_float(pattern):
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def single(x):
    """x rounded to f32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def pattern_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def horner(coefficients, x):
    p = single(coefficients[0])
    for c in coefficients[1:]:
        p = single(single(p * x) + single(c))
    return p


LOG = [-0.0766821355, 0.127736777, -0.131538883, 0.141997546, -0.166237473, 0.20001322, -0.250008136, 0.333333313]
EXP = [0.00138065242, 0.00836876221, 0.041668497, 0.166665196, 0.49999994]
LN2_HIGH, LN2_LOW, LOG2_E = 0.693359375, single(-0.000212194442), single(1.44269504)


def log_f32(x):
    shifted = pattern_of(x) - 0x3F3504F3
    k = shifted >> 23
    f = single(as_float(pattern_of(x) - (k << 23)) - 1)
    square = single(f * f)
    small = single(single(single(square * f) * horner(LOG, f)) + single(k * LN2_LOW))
    small = single(small - single(0.5 * square))
    return single(single(k * LN2_HIGH) + single(f + small))


def exp_f32(x):
    n = single(single(single(x * LOG2_E) + 12582912.0) - 12582912.0)
    r = single(single(x - single(n * LN2_HIGH)) - single(n * LN2_LOW))
    y = single(1 + single(r + single(single(r * r) * horner(EXP, r))))
    return single(y * 2.0 ** int(n))


def text(d):
    return f"{d:.16e}"


def gumbel_cases(rng):
    keys = [(0, 0, 0, t) for t in range(8)]
    keys += [(1, 0, 1, 5), (1 << 32, 0, 1, 5), (1, 1, 1, 5), ((1 << 64) - 1, MASK, MASK, 49151)]
    keys += [(rng.getrandbits(64), rng.getrandbits(2), rng.randrange(4096), rng.randrange(49152))
             for _ in range(600)]
    for seed, choice, position, token in keys:
        yield {"seed": f"{seed:016x}", "choice": choice, "position": position, "token": token,
               "bits": bits(seed, choice, position, token), "g": text(gumbel(seed, choice, position, token)),
               "f32": pattern_of(-log_f32(-log_f32(float(unit(bits(seed, choice, position, token))))))}


def log_cases(rng):
    patterns = [0x00800000, 0x7F7FFFFF, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x3F3504F2, 0x3F3504F3, 0x3F3504F4,
                0x3FB504F3, 0x3FB504F4, 0x33000000]
    patterns += [rng.randrange(0x00800000, 0x7F800000) for _ in range(500)]
    patterns += [rng.randrange(0x3F000000, 0x40000000) for _ in range(600)]
    for p in patterns:
        yield {"x": p, "log": text(Decimal(as_float(p)).ln()), "f32": pattern_of(log_f32(as_float(p)))}


def exp_cases(rng):
    values = [-0.0, -80.0, -25.0, -0.34657359, -0.34657362, -1e-8, -1e-30]
    values += [single(-rng.random() * 80) for _ in range(250)] + [single(-rng.random()) for _ in range(250)]
    for v in values:
        yield {"x": pattern_of(v), "exp": text(Decimal(single(v)).exp()), "f32": pattern_of(exp_f32(single(v)))}


def adjusted(case):
    x = [Decimal(v) for v in case["logits"]]
    penalty = Decimal(single(case["repeat_penalty"]))
    for t in set(case["history"] + case["extra"]):
        x[t] = x[t] / penalty if x[t] > 0 else x[t] * penalty
    for t, v in case["bias"]:
        x[t] += Decimal(v)
    return [v if t not in case["banned"] else NEVER for t, v in enumerate(x)]


def pick(case):
    """The token, or None where rounding might decide."""
    x = adjusted(case)
    order = sorted((t for t in range(len(x)) if x[t] != NEVER), key=lambda t: (-x[t], t))
    if case["temperature"] == 0:
        return order[0]
    z = {t: x[t] / Decimal(single(case["temperature"])) for t in order}
    for a, b in zip(order, order[1:]):
        if 0 < z[a] - z[b] < Decimal("1e-4"):
            return None
    if case["top_k"]:
        order = order[:case["top_k"]]
    p = {t: (z[t] - z[order[0]]).exp() for t in order}
    least = Decimal(single(case["min_p"]))
    if case["top_p"] < 1:
        total, reached, kept = sum(p.values()), Decimal(0), []
        for t in order:
            reached += p[t] / total
            kept.append(t)
            if abs(reached - Decimal(single(case["top_p"]))) < Decimal("1e-4"):
                return None
            if reached > Decimal(single(case["top_p"])):
                break
        order = kept
    if any(abs(p[t] - least) < Decimal("1e-4") * least for t in order):
        return None
    values = sorted(((z[t] + gumbel(case["seed"], case["choice"], case["position"], t), t)
                     for t in order if p[t] >= least), reverse=True)
    if len(values) > 1 and values[0][0] - values[1][0] < Decimal("1e-3"):
        return None
    return values[0][1]


def pick_cases(rng):
    for number in range(240):
        vocab = rng.choice([5, 33, 64, 90])
        case = {
            "logits": [rng.randrange(-512, 512) / 64 for _ in range(vocab)],
            "temperature": rng.choice([0, 0.5, 0.8, 1, 1.7]),
            "top_k": rng.choice([0, 0, 1, 4, 20]),
            "top_p": rng.choice([1, 1, 0.3, 0.7, 0.95]),
            "min_p": rng.choice([0, 0, 0.05, 0.3]),
            "repeat_penalty": rng.choice([1, 1.25, 0.5]),
            "history": [rng.randrange(vocab) for _ in range(rng.choice([0, 6]))],
            "extra": [rng.randrange(vocab) for _ in range(rng.choice([0, 3]))],
            "bias": [[rng.randrange(vocab), rng.randrange(-256, 256) / 64] for _ in range(rng.choice([0, 2]))],
            "banned": sorted(rng.sample(range(vocab), rng.choice([0, 3]))),
            "seed": rng.getrandbits(64), "choice": rng.choice([0, 1]), "position": rng.randrange(2000),
        }
        token = pick(case)
        if token is None:
            continue
        case["seed"] = f"{case['seed']:016x}"
        yield {**case, "token": token}


def adjusted_cases(rng):
    """Penalties and bias in f32: the adjusted logits of a small vocabulary, the best first."""
    for number in range(300):
        vocab = rng.choice([1, 4, 9, 16])
        x = [single(rng.uniform(-20, 20)) for _ in range(vocab)]
        repeat = single(rng.choice([1, 1, 1.1, 0.7, 3]))
        presence = single(rng.choice([0, 0.3, -1.7, 2]))
        frequency = single(rng.choice([0, 0.1, -0.6, 1.9]))
        # Tokens outside the vocabulary are among them.
        history = [rng.randrange(-1, vocab + 2) for _ in range(rng.choice([0, 5, 40]))]
        extra = [rng.randrange(-1, vocab + 2) for _ in range(rng.choice([0, 1, 7]))]
        prompt = rng.choice([0, 3, 30, 50])
        bias = [[rng.randrange(-1, vocab + 2), single(rng.uniform(-100, 100))] for _ in range(rng.choice([0, 1, 9]))]
        case = {"logits": [pattern_of(v) for v in x], "repeat": pattern_of(repeat), "presence": pattern_of(presence),
                "frequency": pattern_of(frequency), "history": history, "extra": extra, "prompt_count": prompt,
                "bias": [[t, pattern_of(v)] for t, v in bias]}
        output = (history + extra)[prompt:]
        for t in set(history + extra) & set(range(vocab)):
            x[t] = single(x[t] / repeat if x[t] > 0 else x[t] * repeat)
            if t in output:
                x[t] = single(x[t] - single(frequency * output.count(t)))
                x[t] = single(x[t] - presence)
        for t, v in bias:
            if 0 <= t < vocab:
                x[t] = single(x[t] + v)
        order = sorted(range(vocab), key=lambda t: (-x[t], t))
        yield {**case, "ranked": [[t, pattern_of(x[t])] for t in order]}


def logprob_cases(rng):
    """Log-softmax, as a real number and to the bit."""
    for number in range(60):
        vocab = rng.choice([1, 3, 16])
        x = [single(rng.uniform(-30, 30)) if rng.random() < 0.9 else single(-rng.random()) for _ in range(vocab)]
        best = max(x)
        total = sum((Decimal(v) - Decimal(best)).exp() for v in x).ln() + Decimal(best)
        weights = 0
        for v in x:
            d = single(v - best)
            weights += int(single((1 if v == best else exp_f32(d) if d > -25 else 0) * 2.0**36))
        rest = log_f32(single(weights / 2.0**36))
        bits = [single(0 - rest) if v == best else single(single(v - best) - rest) for v in x]
        yield {"logits": [pattern_of(v) for v in x], "logprobs": [text(Decimal(v) - total) for v in x],
               "f32": [pattern_of(v) for v in bits]}


def lines(name, cases):
    body = ",\n  ".join(json.dumps(c, separators=(",", ":")) for c in cases)
    return f'"{name}": [\n  {body}\n ]'


def main():
    rng = random.Random(20240229)
    parts = [("gumbel", gumbel_cases), ("log", log_cases), ("exp", exp_cases), ("pick", pick_cases),
             ("adjusted", adjusted_cases), ("logprob", logprob_cases)]
    print("{\n " + ",\n ".join(lines(name, make(rng)) for name, make in parts) + "\n}")


main()
