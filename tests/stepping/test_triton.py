"""The Triton kernel against Philox, gaussian.py and a step written out in torch.

Triton's interpreter runs it on CPU tensors. With ``TRITON_INTERPRET=0`` in the environment the same tests run on a GPU.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
INTERPRETED = os.environ["TRITON_INTERPRET"] == "1"
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from ctld.noise.gaussian import GROUP, gaussian, three_point  # noqa: E402
from ctld.noise.philox import WORD, philox  # noqa: E402
from ctld.stepping import triton as host  # noqa: E402
from ctld.stepping import triton_kernel  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="there is no GPU")
host.available()  # makes kernels of the functions that the kernels below call

SEED, STEP = 2**62 + 2**33 + 5, 2**32 - 2
SIZES, STREAMS = [host.CHUNK + 45, 0, 1, 16, host.CHUNK], [2, 3, 2**32 - 1, 7, 8]


@triton.jit
def _fused(x, out):
    value = tl.load(x)
    tl.store(out, tl.fma(value, value, -1.0))


@triton.jit
def _words(name, blocks, out):
    lane = tl.arange(0, 8)
    first_block = tl.load(name + 3)
    words = triton_kernel._words(
        tl.load(name), tl.load(name + 1), tl.load(name + 2), first_block, tl.load(blocks + lane)
    )
    for number in tl.static_range(4):
        tl.store(out + 4 * lane + number, words[number].to(tl.int64))


@triton.jit
def _numbers(name, out, NOISE: tl.constexpr, CHUNK: tl.constexpr):
    halves = triton_kernel._noise(tl.load(name), tl.load(name + 1), tl.load(name + 2), tl.load(name + 3), NOISE, CHUNK)
    lane = tl.arange(0, CHUNK // 8)
    places = (lane // 4 * 32 + lane % 4 * 4)[:, None] + tl.arange(0, 4)[None, :]
    tl.store(out + places, halves[0])
    tl.store(out + places + 16, halves[1])


@triton.jit
def _three_points(halves, out, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(out + place, triton_kernel._three_points(tl.load(halves + place)))


def rounds_once():
    """Whether `tl.fma` does: on GPUs, and in the interpreter since Triton 3.9 or thereabouts."""
    x, out = torch.tensor([1 + 2.0**-12], device=DEVICE), torch.zeros(1, device=DEVICE)
    _fused[(1,)](x, out)
    return out.item() == 2.0**-11 + 2.0**-24


def on_device(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def philox_words(seed, step, stream, block):
    counter = torch.stack((block & WORD, block >> 32, torch.full_like(block, step), torch.full_like(block, stream)))
    return philox(counter, (seed & WORD, seed >> 32)).T.reshape(-1)


def philox_numbers(kind, seed, step, stream, numel, first=0):
    """What `ctld.noise` gives on devices that are not CPUs; on a CPU it would use another generator."""
    transform, group = (gaussian, GROUP // 4) if kind == "gaussian" else (three_point, GROUP // 8)
    begin = first // GROUP * group
    block = torch.arange(begin, begin - (-numel // GROUP) * group)
    return transform(philox_words(seed, step, stream, block))[:numel]


def assert_numbers(made, expected):
    """To the last bit where a·b + c is rounded once; else within a few roundings of the parts of c − s, times r < 7."""
    torch.testing.assert_close(made.cpu(), expected, rtol=0, atol=0 if rounds_once() else 16 * 2.0**-24 * 7)


@pytest.mark.parametrize(
    ("seed", "step", "stream", "first_block"),
    [
        (0, 0, 0, 0),
        (SEED, STEP, 2**32 - 1, 2**32 - 8),
        (2**63 - 1, 1, 16, 3 * 2**32),
        (17, 2**31, 2**31, 2**60 + 2**31),
    ],
)
def test_words_are_philox(seed, step, stream, first_block):
    out = on_device([0] * 32)
    _words[(1,)](on_device([seed, step, stream, first_block]), on_device(range(8), torch.int32), out)
    assert torch.equal(out.cpu(), philox_words(seed, step, stream, first_block + torch.arange(8)))


@pytest.mark.parametrize("first", [0, 3 * host.CHUNK, 2**40 + host.CHUNK])
@pytest.mark.parametrize("kind", ["gaussian", "three_point"])
def test_numbers_of_a_chunk(kind, first):
    out = torch.zeros(host.CHUNK, device=DEVICE)
    _numbers[(1,)](on_device([SEED, STEP, 9, first]), out, NOISE=host.KINDS[kind], CHUNK=host.CHUNK)
    assert_numbers(out, philox_numbers(kind, SEED, STEP, 9, host.CHUNK, first))


def test_three_points_of_every_half():
    """Few of a chunk's halves lie next to a threshold."""
    words, out = torch.arange(2**16), torch.zeros(2**16, device=DEVICE)
    halves = torch.where(words < 2**15, words, words - 2**16)
    _three_points[(1,)](halves.int().to(DEVICE), out, COUNT=2**16)
    expected = three_point(words).view(-1, 2, GROUP // 2)[:, 0].reshape(-1)
    assert torch.equal(out.cpu(), expected)


def advance(parameters, momenta, streams, *name, offsets=None, **options):
    gradients = [parameter.grad for parameter in parameters]
    return host.launch(parameters, gradients, momenta, streams, offsets or [0] * len(parameters), *name, **options)


STILL = {"retain": 0.0, "impulse": 0.0, "deviation": 1.0, "stride": 1.0, "decay": 0.0, "ascend": False}


@pytest.mark.parametrize("dtype", list(host.TYPES))
@pytest.mark.parametrize("kind", ["gaussian", "three_point"])
def test_noise_alone(kind, dtype):
    """From zero, a step with nothing but noise gives the numbers."""
    parameters = [torch.zeros(size, dtype=dtype, device=DEVICE) for size in SIZES]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    advance(parameters, None, STREAMS, kind, SEED, STEP, **STILL)
    for parameter, stream in zip(parameters, STREAMS, strict=True):
        expected = philox_numbers(kind, SEED, STEP, stream, parameter.numel()).to(dtype)
        if dtype is torch.bfloat16 and not rounds_once():
            torch.testing.assert_close(parameter.cpu(), expected, rtol=2.0**-7, atol=1e-5)
        else:
            assert_numbers(parameter, expected)


def random_lists(dtype, shift=0):
    """Tensors in the middle of longer ones, so that a write beyond their ends shows; the longer ones are in `around`."""
    real = torch.float64 if dtype == torch.float64 else torch.float32
    lists = SimpleNamespace(real=real, around=[])

    def fresh(dtype, positive=False):
        made = []
        for size in SIZES:
            values = torch.randn(size + 16, dtype=torch.float64)
            whole = (values.abs() + 0.1 if positive else values).to(dtype).to(DEVICE)
            made.append(whole[8 + shift : 8 + shift + size])
            lists.around.append((whole, whole.clone(), 8 + shift, size))
        return made

    lists.parameters, gradients = fresh(dtype), fresh(dtype)
    lists.momenta, lists.scales, lists.previous_gradients = fresh(real), fresh(real, True), fresh(real)
    lists.gradient_variances = fresh(real, True)
    for parameter, gradient in zip(lists.parameters, gradients, strict=True):
        parameter.grad = gradient
    return lists


def expected_step(lists, place, numbers, options):
    """One tensor's step, on a CPU: every operation is rounded to `real`, and a·b + c once. Returns tensors and sums."""
    real = lists.real

    def given(name):
        found = options.get(name)
        return None if found is None else found[place].cpu().clone()

    def factor(name):
        return torch.tensor(options.get(name, 0.0), dtype=torch.float64).to(real)

    def fma(a, b, c):
        return (a.double() * b.double() + c.double()).to(real)

    def root(x):
        return x.double().sqrt().to(real)

    theta, raw = (x.cpu().to(real) for x in (lists.parameters[place], lists.parameters[place].grad))
    total = fma(factor("decay"), theta, -raw if options["ascend"] else raw)
    spread, clamped = factor("deviation"), 0
    scale, previous, known, old = map(given, ("scales", "previous_gradients", "gradient_variances", "momenta"))
    if scale is not None:
        total, spread = total * scale, spread * root(scale)
    if previous is not None:
        square = (raw - previous).square() * 0.5
        memory = factor("memory")
        # lerp's two forms, either of which is exact at its end
        if memory < 0.5:
            known = fma(memory, square - known, known)
        else:
            known = fma((torch.tensor(options["memory"]).double() - 1).to(real), square - known, square)
        remaining = factor("variance") - factor("gradient_share") * known
        clamped, spread, previous = int((remaining < 0).sum()), root(remaining.clamp_min(0.0)), raw
    old = torch.zeros_like(theta) if old is None else old
    move = fma(factor("impulse"), total, factor("retain") * old)
    if numbers is not None:
        move = fma(spread, numbers.to(real), move)
    moved = fma(factor("stride"), move, theta).to(lists.parameters[place].dtype)
    mass = 1.0 if scale is None else 1.0 / scale.double()
    norms = [float(theta.double().square().sum())]
    norms += [float((mass * x.double().square()).sum()) for x in (move, old + move)]
    return (moved, move, previous, known), [*norms, clamped]


PLAIN = {"retain": 0.9, "impulse": -0.37, "deviation": 0.23, "stride": 0.61, "decay": 0.0, "ascend": False}
COMPENSATED = {"previous_gradients": True, "gradient_variances": True, "variance": 0.5, "gradient_share": 0.4}
CASES = {
    "plain": {},
    "three-point": {"kind": "three_point"},
    "no noise": {"kind": None},
    "decay, ascending": {"decay": 0.11, "ascend": True},
    "no momenta": {"momenta": None, "decay": 0.11},
    "scales": {"scales": True},
    "compensation, first gradient": COMPENSATED | {"memory": 0.0},
    "compensation, second gradient": COMPENSATED | {"memory": 1.0},
    "compensation, scales": COMPENSATED | {"memory": 1 / 7, "scales": True, "decay": 0.11},
    "not refused": {"refused": False},
    "not measured": {"measure": False, "scales": True},
}


def run(lists, changes, streams=STREAMS, seed=SEED, step=STEP):
    """The kernel's step; returns what it should have given, tensor by tensor, and both sums."""
    options = PLAIN | {"momenta": True, "kind": "gaussian", "measure": True} | changes
    if "refused" in options:
        options["refused"] = torch.tensor(options["refused"], device=DEVICE)
    for name in ("momenta", "scales", "previous_gradients", "gradient_variances"):
        if options.get(name):
            options[name] = getattr(lists, name)
    kind = options.pop("kind")
    expected, sums = [], torch.zeros(4, dtype=torch.float64)
    for place, stream in enumerate(STREAMS):
        numbers = None if kind is None else philox_numbers(kind, SEED, STEP, stream, SIZES[place])
        tensors, added = expected_step(lists, place, numbers, options)
        expected.append(tensors)
        sums += torch.tensor(added, dtype=torch.float64)
    momenta = options.pop("momenta")
    made = advance(lists.parameters, momenta, streams, kind, seed, step, **options)
    return expected, sums, made


def assert_same(made, expected):
    """To the last bit, but for float64, in which the expected step rounds a·b + c twice: within 4 roundings.

    Where the kernel does so too, the noise is off by some roundings of float32: see `assert_numbers`.
    """
    tolerance = 4 * torch.finfo(expected.dtype).eps if expected.dtype == torch.float64 else 0.0
    if not rounds_once():
        tolerance = max(4 * torch.finfo(expected.dtype).eps, 4e-6)
    torch.testing.assert_close(made.cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(host.TYPES))
@pytest.mark.parametrize("case", CASES)
def test_whole_step(case, dtype):
    lists, changes = random_lists(dtype), CASES[case]
    expected, sums, made = run(lists, changes)
    for place, (moved, move, previous, known) in enumerate(expected):
        assert_same(lists.parameters[place], moved)
        if "momenta" not in changes:
            assert_same(lists.momenta[place], move)
        if "previous_gradients" in changes:
            assert_same(lists.previous_gradients[place], previous)
            assert_same(lists.gradient_variances[place], known)
    if not changes.get("measure", True):
        sums = torch.zeros(4, dtype=torch.float64)
    assert made.dtype == torch.float64
    assert made.device.type == DEVICE
    # Eight squares are added in the momenta's precision before float64 takes over: 8 roundings, all of one sign at worst.
    tolerance = 8 * torch.finfo(lists.real if rounds_once() else torch.float32).eps
    torch.testing.assert_close(made.cpu(), sums, rtol=tolerance, atol=0)
    if "previous_gradients" in changes:
        assert made[3] > 0


@pytest.mark.parametrize("shift", [0, 1])
def test_nothing_beyond_the_ends_is_touched(shift):
    """With shift 1 no tensor begins at a multiple of 16 bytes, and the kernel must not think so."""
    lists = random_lists(torch.float32, shift)
    expected, _, _ = run(lists, CASES["compensation, scales"])
    for place, (moved, *_) in enumerate(expected):
        assert_same(lists.parameters[place], moved)
    for whole, before, first, size in lists.around:
        assert torch.equal(whole[:first], before[:first])
        assert torch.equal(whole[first + size :], before[first + size :])


def test_refused_step_changes_nothing():
    lists = random_lists(torch.float32)
    _, sums, made = run(lists, CASES["compensation, scales"] | {"refused": True})
    assert made.tolist() == [0.0] * 4
    assert sums.all()
    assert all(torch.equal(whole, before) for whole, before, _, _ in lists.around)


@pytest.mark.parametrize(
    "wrong",
    [{"streams": [*STREAMS[:-1], 9]}, {"seed": SEED + 1}, {"seed": SEED + 2**32}, {"step": STEP + 1}],
    ids=["stream", "seed", "seed's high word", "step"],
)
def test_another_name_gives_another_step(wrong):
    lists = random_lists(torch.float32)
    expected, _, _ = run(lists, {}, **wrong)
    with pytest.raises(AssertionError, match=r"not (close|equal)"):
        assert_same(lists.parameters[-1], expected[-1][0])


@pytest.mark.parametrize("kind", ["gaussian", "three_point"])
@pytest.mark.parametrize("cut", [32, 77, host.CHUNK, host.CHUNK + 33])
def test_shards_are_the_whole(kind, cut):
    """Also those that begin amid the 32 elements whose noise is made together, and whose first chunk is then not whole."""
    size = 2 * host.CHUNK + 45
    options = PLAIN | {"measure": True}

    def fresh():
        generator = torch.Generator().manual_seed(3)
        made = [torch.randn(size, generator=generator).to(DEVICE) for _ in range(3)]
        made[0].grad = made[1]
        return made[0], made[2]

    whole, momentum = fresh()
    sums = advance([whole], [momentum], [4], kind, SEED, STEP, **options)
    other, other_momentum = fresh()
    parts, momenta = [other[:cut], other[cut:]], [other_momentum[:cut], other_momentum[cut:]]
    for part, gradient in zip(parts, (other.grad[:cut], other.grad[cut:]), strict=True):
        part.grad = gradient
    added = sum(
        advance([part], [own], [4], kind, SEED, STEP, offsets=[offset], **options)
        for part, own, offset in zip(parts, momenta, (0, cut), strict=True)
    )
    assert torch.equal(other, whole)
    assert torch.equal(other_momentum, momentum)
    torch.testing.assert_close(added, sums, rtol=1e-6, atol=0)  # sums in float32 of eight numbers, other eights


def test_no_elements():
    empty = torch.empty(0, device=DEVICE)
    empty.grad = torch.empty(0, device=DEVICE)
    assert advance([empty], None, [2], "gaussian", SEED, STEP, **STILL, measure=True).tolist() == [0.0] * 4


def test_not_a_number_stays_one():
    """Also the one with all bits set, which is what NVIDIA's arithmetic gives: rounding its bits would make it −0."""
    parameter = torch.ones(3, dtype=torch.bfloat16, device=DEVICE)
    parameter.grad = torch.tensor([0.0, 0.0, torch.inf], dtype=torch.bfloat16, device=DEVICE)
    momentum = on_device([0, 0x7FFFFFFF, 0], torch.int32).view(torch.float32)
    advance([parameter], [momentum], [2], None, 0, 0, **STILL | {"retain": 1.0, "impulse": 1.0})
    assert str(parameter.tolist()) == "[1.0, nan, inf]"


@pytest.mark.parametrize("shift", [0, 1])
def test_the_kernel_is_told_of_alignment(monkeypatch, shift):
    class Recorder:
        def __getitem__(self, grid):
            return lambda *tensors, **options: seen.append(options["ALIGNED"])

    seen, lists = [], random_lists(torch.float32, shift)
    monkeypatch.setattr(triton_kernel, "kernel", Recorder)
    advance(lists.parameters, lists.momenta, STREAMS, None, 0, 0, **STILL)
    assert seen == [shift == 0]


def test_without_triton(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(triton_kernel, "import_module", missing)
    assert triton_kernel.kernel.__wrapped__() is None


def test_import_leaves_triton_alone():
    script = "import sys, ctld.stepping.triton\nassert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from ctld.stepping import triton as host, triton_kernel

class Imagined:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 80, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

class Compiler:
    def __getitem__(self, grid):
        return lambda *arguments, **options: compiled.append(kernel.warmup(*arguments, grid=grid, **options))

driver.set_active(Imagined())
kernel, triton_kernel.kernel = triton_kernel.kernel(), Compiler
for dtype, kind, options, shift in [(torch.float32, None, False, 0), (torch.float32, "gaussian", False, 0),
                                    (torch.float32, "gaussian", True, 1), (torch.float64, "gaussian", True, 0),
                                    (torch.bfloat16, "three_point", True, 0)]:
    compiled = []
    real = torch.float64 if dtype == torch.float64 else torch.float32
    for seed, step, sizes in [(1, 1, [5000, 1]), (16, 16, [1]), (2**62 + 1, 2**32 - 1, [16, 33, 4096])]:
        parameters = [torch.zeros(size + shift, dtype=dtype)[shift:] for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        lists = [[torch.zeros(size, dtype=real) for size in sizes] for _ in range(4)]
        names = ["scales", "previous_gradients", "gradient_variances"]
        gradients, streams, offsets = [x.grad for x in parameters], list(range(len(sizes))), [0] * len(sizes)
        host.launch(parameters, gradients, lists[0], streams, offsets, kind, seed, step, retain=1.0, impulse=step / 7,
                     deviation=0.0, stride=1.0, decay=step / 3, ascend=step == 1, measure=options,
                     refused=torch.tensor(False) if options else None, **(dict(zip(names, lists[1:])) if options else {}))
    assert len(set(map(id, compiled))) == 1, "compiled anew for another step"
    code = compiled[0].asm["ptx"]
    wide = "ld.global.v2.b64" if dtype == torch.float64 else "ld.global.v4.b32"
    assert (wide in code) == (shift == 0), "loads of aligned elements are not 16 bytes wide"
    assert "approx" not in code
"""


@pytest.mark.slow
def test_compiles_once_for_a_gpu(tmp_path):
    """The compiler, which needs no GPU, takes less of Python than the interpreter does."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(INTERPRETED, reason="there is no device to wait for")
def test_the_host_does_not_wait():
    lists = random_lists(torch.float32)
    options = PLAIN | {"measure": True}
    advance(lists.parameters, lists.momenta, STREAMS, "gaussian", SEED, 0, **options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(1, 20):
            advance(lists.parameters, lists.momenta, STREAMS, "gaussian", SEED, step, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not INTERPRETED, reason="compares with torch's own noise, which is Philox off CPUs only")
@pytest.mark.parametrize("name", ["euler", "baoab", "ubu"])
def test_plans_are_carried_out_sweep_by_sweep(monkeypatch, name):
    """Against foreach.py, with the noise that it would have on a GPU."""
    from ctld.sharding import Block
    from ctld.stepping import foreach, integrators

    def like(self, tensor, stream, block):
        return philox_numbers(self.kind, self.seed, self.step, stream, tensor.numel()).to(tensor.dtype)

    monkeypatch.setattr(foreach.Noise, "like", like)
    plan = integrators.INTEGRATORS[name](0.09, 0.8, 0.02, decay=0.01)
    made = []
    for advance_by in (host.advance, foreach.advance):
        generator = torch.Generator().manual_seed(0)
        lists = [[torch.randn(size, generator=generator) for size in (45, 300)] for _ in range(3)]
        part = foreach.Part(*lists, [{}, {}], [2, 3], [Block(((0, size),), 1) for size in (45, 300)], [1.0, 1.0])
        rows = advance_by(part, plan, foreach.Noise("gaussian", SEED, 7))
        made.append((lists[0] + lists[2], plan.reading(rows)))
    for mine, other in zip(made[0][0], made[1][0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(made[0][1], made[1][1], rtol=1e-5, atol=1e-6)
