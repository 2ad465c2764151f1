"""Candidates for the default's structure and temperature, on the design problems alone.

    python research/default/design.py --data FOLDER OUTPUT.csv
"""

import argparse
import csv
import itertools
import math
import sys
import time
from pathlib import Path

import torch

import problems
from problems import DESIGN, Problem

MOMENTUM = 0.9


def cosine(n):
    return [0.5 * (1 + math.cos(math.pi * i / n)) for i in range(n)]


def cycle(n, hold=0.6):
    h = min(int(hold * n), n - 1)
    return [1.0] * h + cosine(n - h), [True] * h + [False] * (n - h)


def structure(name, steps):
    """lr factors, hot flags, ends of members"""
    if name == "sgd":
        return cosine(steps), [False] * steps, [steps - 1]
    if name == "held":
        f, h = cycle(steps)
        return f, h, [steps - 1]
    if name[0] == "k":
        lengths = [steps // int(name[1:])] * int(name[1:])
        cold = 0
    elif name[0] == "f":
        first, k = {"f4": (0.4, 4), "f2": (0.6, 2), "f5": (0.5, 5), "f3": (0.55, 3)}[name]
        lengths = [int(first * steps)] + [int((1 - first) / k * steps)] * k
        cold = 1
    lr, hot, ends = [], [], []
    for i, n in enumerate(lengths):
        if name[0] == "f" and i == 0:
            f, h = cosine(n), [False] * n
        else:
            f, h = cycle(n)
        if i < cold:
            h = [False] * n
        lr += f
        hot += h
        ends.append(len(lr) - 1)
    return lr, hot, ends


def run(problem: Problem, lr, wd, epochs, name, rule, seed):
    torch.manual_seed(seed)
    model = problem.network(0.0)
    x, y, a, b = problem.draw(seed)
    n = len(x)
    batch = problem.batch
    per = n // batch
    steps = per * epochs
    factors, hots, ends = structure(name, steps)
    gen = torch.Generator().manual_seed(seed + 7)
    params = [p for p in model.parameters()]
    big = [p for p in params if p.dim() >= 2]
    rms2 = sum(float((p.detach()**2).sum()) for p in big) / sum(p.numel() for p in big)
    norm = any(isinstance(m, (torch.nn.BatchNorm2d, torch.nn.LayerNorm)) for m in model.modules())
    kappa = None
    T = 0.0
    if rule and not norm:
        T = min(1.0, float(rule) * rms2 * wd * n)
    v = [torch.zeros_like(p) for p in params]
    outs = []
    def predict():
        model.eval()
        with torch.no_grad():
            o = model(a)
        model.train()
        return o
    for t in range(len(factors)):
        if t % per == 0:
            order = torch.randperm(n, generator=gen)
        idx = order[(t % per) * batch : (t % per + 1) * batch]
        loss = problem.loss(model(x[idx]), y[idx])
        grads = torch.autograd.grad(loss, params)
        rate = lr * factors[t]
        with torch.no_grad():
            torch._foreach_mul_(v, MOMENTUM)
            torch._foreach_add_(v, grads, alpha=-rate)
            torch._foreach_add_(v, params, alpha=-rate * wd)
            if T and hots[t]:
                s = math.sqrt(2 * (1 - MOMENTUM) * rate * T / n)
                torch._foreach_add_(v, [torch.randn_like(p) for p in params], alpha=s)
            torch._foreach_add_(params, v)
        if t in ends:
            outs.append(predict())
    if not all(bool(torch.isfinite(o).all()) for o in outs):
        return [math.nan] * 4
    half = outs[len(outs) // 2 :]
    return [problem.judge(outs, b), problem.judge(half, b), problem.judge(outs[1:] or outs, b), problem.judge(outs[-1:], b)]


CANDIDATES = [("sgd", 0), ("held", 0), ("k2", 0), ("k3", 0), ("k4", 0), ("k6", 0), ("f4", 0), ("f2", 0),
              ("k3", 9), ("k6", 9), ("f4", 9), ("k6", 2), ("k3", 2)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=Path)
    ap.add_argument("--only")
    ap.add_argument("--seeds", type=int, default=3)
    ap.add_argument("output", type=Path)
    o = ap.parse_args()
    problems.DATA = o.data
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    done = set()
    if o.output.exists():
        done = {tuple(r[:7]) for r in csv.reader(o.output.open())}
    f = o.output.open("a", newline="")
    w = csv.writer(f)
    for seed in range(o.seeds):
        for p in DESIGN:
            if o.only and p.name not in o.only.split(","):
                continue
            for lr, wd, ep in itertools.product(p.rates, (5e-4, 3e-3, 1e-2), (p.budgets[0], int((p.budgets[0]*p.budgets[1])**.5), p.budgets[1])):
                for name, rule in CANDIDATES:
                    key = tuple(map(str, (p.name, lr, wd, ep, name, rule, seed)))
                    if key in done:
                        continue
                    t0 = time.process_time()
                    r = run(p, lr, wd, ep, name, rule, seed)
                    w.writerow([*key, *[f"{v:.5f}" for v in r], f"{time.process_time()-t0:.2f}"])
                    f.flush()


main()
