"""Steps of parameters: what to do as numbers, on which tensors, by which kernel.

    sweep.py        Sweep, Plan: p ← retain·p + impulse·s∇ + deviation·√s·ε;  θ ← θ + stride·p
    integrators.py  numbers → plans: euler, baoab, ubu, sgd, rest
    active.py       Active: the parameters that have a gradient, of all groups
    engine.py       run(active, plans, noise) → sums of each group; finite(active)
    foreach.py      the definition, in torch
    native.py, kernels.c    on CPUs, all groups in one call
    triton.py       on GPUs

This package imports nothing by itself: `ctld.noise` takes its numbers from `ctld.stepping.native`, which knows nothing of the
rest.
"""
