"""The operators against numbers worked by hand, against each other, and under torch's own checks."""

import pytest
import torch

import microscale_torch as ms

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SCHEMES = ["ue5m3_fp4", "ue5m3_fp4_2d", "ue5m3_fp4_b32", "ue5m3_fp4_b32_2d", "nvfp4", "nvfp4_2d", "nvfp4_single",
           "nvfp4_4over6", "nvfp4_ms_eden", "mxfp4", "mxfp4_ceil_2d", "mxfp8_e4m3_ceil", "ufp4"]  # fmt: skip
SCALE_DRAWS = {"rounding": "with_scale_draws", "seed": 5, "scale_stream": 9}
SHAPES = [(1, 1), (3, 50), (32, 64), (33, 129), (0, 16), (16, 0)]


def adversarial(rows, cols, seed=0):
    """Wide in range, with zeros of both signs, ties of E2M1 times powers of two, subnormals."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=g) * torch.exp2(torch.randint(-30, 30, (rows, 1), generator=g).float())
    kind = torch.randint(0, 6, (rows, cols), generator=g)
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])[torch.randint(0, 7, (rows, cols), generator=g)]
    x = torch.where(kind == 0, ties, x)
    x = torch.where(kind == 1, torch.tensor(-0.0), x)
    return torch.where(kind == 2, x * 1e-38, x)


def draws_of(scheme):
    return SCALE_DRAWS if scheme == "nvfp4_ms_eden" else {}


def bits(x):
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]).cpu()


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_by_hand(device):
    # The amax is 6 x 448, so nvfp4's tensor scale is 1; the block's is 448, and each element a code times it.
    x = torch.tensor([E2M1 + [-v for v in E2M1]], device=device) * 448.0
    q = ms.quantize(x, "nvfp4")
    assert q.codes.tolist() == [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]
    assert q.scales.tolist() == [[0x7E]] and q.datum.tolist() == [6 * 448.0]
    assert same(ms.dequantize(q), x)
    assert ms.gemm(q, q).item() == 2 * sum(v * v for v in E2M1) * 448.0**2


def test_powers_of_two_by_hand():
    # MXFP4, floor: amax 3 has exponent 1, less E2M1's 2: scale 2^-1, code 126. 3 / 2^-1 = 6; 1.25 / 2^-1 = 2.5, a tie,
    # to even 2.
    q = ms.quantize(torch.tensor([[3.0, 1.25, -0.5]]), "mxfp4")
    assert q.scales.tolist() == [[126]]
    assert ms.dequantize(q).tolist() == [[3.0, 1.0, -0.5]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fake_is_quantize_then_dequantize(scheme, shape):
    x = adversarial(*shape)
    for columns in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            a = x.to(dtype)
            how = {"columns": columns, **draws_of(scheme)}
            whole = ms.dequantize(ms.quantize(a, scheme, **how), dtype)
            assert same(ms.fake_quantize(a, scheme, **how), whole)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_columns_are_the_rows_of_the_transpose(scheme):
    x, how = adversarial(48, 65), draws_of(scheme)
    a, b = ms.quantize(x, scheme, columns=True, **how), ms.quantize(x.t().contiguous(), scheme, **how)
    assert same(a.codes, b.codes) and same(a.scales, b.scales) and same(a.datum, b.datum)


def test_a_reference_is_used_and_draws_depend_on_their_key():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    own = ms.quantize(x, "ue5m3_fp4")
    assert same(ms.quantize(x, "ue5m3_fp4", reference=ms.amax(x)).codes, own.codes)
    assert not same(ms.quantize(x, "ue5m3_fp4", reference=ms.amax(x) * 100).scales, own.scales)
    draws = [ms.quantize(x, "ue5m3_fp4", rounding="stochastic_midpoint8", seed=s, stream=t).codes
             for s, t in ((1, 1), (1, 1), (2, 1), (1, 2))]  # fmt: skip
    assert same(draws[0], draws[1]) and not same(draws[0], draws[2]) and not same(draws[0], draws[3])


def test_stochastic_rounding_is_unbiased():
    # 1000 draws of a value a quarter of the way: the mean is within five standard errors, and of both neighbours.
    x = torch.full((1000, 16), 2.25)
    x[:, 0] = 6.0
    y = ms.fake_quantize(x, "nvfp4_single", rounding="stochastic_midpoint8", seed=3)[:, 1:]
    assert sorted(set(y.flatten().tolist())) == [2.0, 3.0]
    assert abs(y.mean().item() - 2.25) < 5 * (0.1875 / y.numel()) ** 0.5


def test_scales_draw_from_a_stream_of_their_own():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))

    def of(**keys):
        return ms.quantize(x, "nvfp4_ms_eden", rounding="with_scale_draws", **keys)

    q = of(seed=1, scale_stream=2)
    for again in (of(seed=1, scale_stream=2), of(seed=1, stream=7, scale_stream=2)):
        assert same(again.codes, q.codes) and same(again.scales, q.scales) and same(again.datum, q.datum)
    for other in (of(seed=2, scale_stream=2), of(seed=1, scale_stream=3)):
        assert same(other.codes, q.codes) and not same(other.scales, q.scales) and same(other.datum, q.datum)


def test_a_block_under_drawn_scales_keeps_its_projection_on_itself():
    # On the mean over draws, of which each of 4000 rows takes one: within five standard errors.
    row = torch.randn(16, generator=torch.Generator().manual_seed(2))
    y = ms.fake_quantize(row.repeat(4000, 1), "nvfp4_ms_eden", rounding="with_scale_draws", seed=3)
    projections = (y.double() @ row.double()) / row.double().square().sum()
    assert len(projections.unique()) == 2
    assert (projections.mean() - 1).abs() < 5 * projections.std() / 4000**0.5


@pytest.mark.parametrize("accumulation", ["exact_f32", "f32_blocks", "blackwell_k64", "vendor"])
def test_gemm_of_small_integers_is_exact(accumulation):
    # Integers up to 4 over a largest of 6 are kept by the floor rule; sums below 2^24 are exact in any order.
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (n, 96), generator=g).float() for n in (7, 5))
    a[:, ::32] = b[:, ::32] = 6.0
    c = ms.gemm(ms.quantize(a, "mxfp4"), ms.quantize(b, "mxfp4"), accumulation)
    assert torch.equal(c, a @ b.t())


@pytest.mark.parametrize("scheme", ["ue5m3_fp4", "nvfp4"])
def test_vendor_is_within_its_bound_of_the_exact_sum(scheme):
    a, b = (ms.quantize(torch.randn(n, 200, generator=torch.Generator().manual_seed(n)), scheme) for n in (9, 8))
    exact, vendor = ms.gemm(a, b), ms.gemm(a, b, "vendor")
    magnitudes = ms.dequantize(a).abs().double() @ ms.dequantize(b).abs().double().t()
    # k additions at 2^-23 of the sum of magnitudes, and the roundings of alpha and of `exact` itself.
    bound = (200 * 2.0**-23) * magnitudes + 2.0**-22 * exact.abs().double()
    assert bool(((vendor.double() - exact.double()).abs() <= bound).all())


def test_hadamard_is_its_own_inverse_on_integers_and_takes_signs():
    x = torch.zeros(2, 16)
    x[0, 3], x[1, 0] = 4.0, 8.0
    y = ms.hadamard(x)
    assert y[0].abs().unique().tolist() == [1.0] and y[1].tolist() == [2.0] * 16
    assert torch.equal(ms.hadamard(y), x)
    assert torch.equal(ms.hadamard(x, signs=[1 << 3]), torch.stack([-y[0], y[1]]))
    assert torch.equal(ms.hadamard(x.t().contiguous(), columns=True), y.t())


def test_the_gradient_passes_straight_through():
    x = torch.randn(8, 32, requires_grad=True)
    dy = torch.randn(8, 32)
    ms.fake_quantize(x, "nvfp4").backward(dy)
    assert torch.equal(x.grad, dy)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("size,signs", [(16, []), (16, [0x8009]), (64, [1 << 63 | 5]), (256, [3, 0, 0, 1 << 63])])
def test_the_gradient_of_a_transform_is_its_transpose(size, signs, columns):
    # Sums of integers below 2^24 are exact; 16, 64 and 256 have exact roots.
    g = torch.Generator().manual_seed(0)
    x, dy = (torch.randint(-8, 9, (size, 2 * size), generator=g).float() for _ in range(2))
    if columns:
        x, dy = x.t().contiguous(), dy.t().contiguous()
    x.requires_grad_()
    y = ms.hadamard(x, size, columns=columns, signs=signs)
    matrix = ms.hadamard(torch.eye(2 * size), size, signs=signs)  # of which row i is what becomes of unit i
    assert torch.equal(y, matrix.t() @ x if columns else x @ matrix)
    y.backward(dy)
    assert torch.equal(x.grad, matrix @ dy if columns else dy @ matrix.t())


def test_what_has_no_gradient_says_so():
    x = torch.randn(4, 16, requires_grad=True)
    q = ms.quantize(x, "nvfp4")
    for y, name in ((ms.dequantize(q), "dequantize"), (ms.gemm(q, q), "gemm"), (ms.amax(x), "amax"),
                    (q.datum, "quantize")):  # fmt: skip
        with pytest.raises(RuntimeError, match=f"{name} has no gradient: expected fake_quantize"):
            y.sum().backward()


def test_seeds_and_streams_are_words_with_a_sign_or_without():
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    for name in ("seed", "stream"):
        for function, part in ((ms.quantize, lambda q: q.codes), (ms.fake_quantize, lambda y: y)):
            a, b, c = (
                part(function(x, "nvfp4", rounding="stochastic_floor8", **{name: word})) for word in (-1, 2**64 - 1, 1)
            )
            assert same(a, b) and not same(a, c)
            for word in (2**64, -(2**63) - 1, 1.5, None):
                with pytest.raises(ValueError, match=f"{name}: expected a whole number of 64 bits"):
                    function(x, "nvfp4", **{name: word})
    assert same(ms.hadamard(x, signs=[-1]), ms.hadamard(x, signs=[2**64 - 1]))
    with pytest.raises(ValueError, match="signs: expected"):
        ms.hadamard(x, signs=[2**64])


def test_a_quantized_matrix_is_saved_and_loaded(tmp_path):
    q = ms.quantize(torch.randn(16, 64), "ue5m3_fp4", columns=True)
    torch.save({"w": q}, tmp_path / "q")
    assert same(ms.dequantize(torch.load(tmp_path / "q")["w"]), ms.dequantize(q))


def test_errors_say_what_was_expected():
    x = torch.ones(2, 16)
    with pytest.raises(RuntimeError, match="target: expected a number of 32 bits, got 4294967744"):
        ms.quantize(x, "ue5m3_fp4", target=2**32 + 448)
    with pytest.raises(RuntimeError, match="Hadamard size: expected a number of 32 bits"):
        ms.hadamard(x, 2**32 + 16)
    elsewhere = torch.ones(1, device="meta")
    for function in (ms.quantize, ms.fake_quantize):
        with pytest.raises(RuntimeError, match="reference: expected a tensor on cpu, got meta"):
            function(x, "nvfp4", reference=elsewhere)
    q = ms.quantize(x, "nvfp4")
    with pytest.raises(RuntimeError, match="second operand: expected a tensor on cpu, got meta"):
        ms.gemm(q, ms.quantize(x.to("meta"), "nvfp4"))
    with pytest.raises(RuntimeError, match="scheme: expected .* built with"):
        ms.quantize(torch.ones(2, 2), "nvfp5")
    with pytest.raises(RuntimeError, match="rounding"):
        ms.quantize(torch.ones(2, 2), "nvfp4", rounding="up")
    for scheme, rounding, built in (
        ("nvfp4_ms_eden", "nearest_even", "with_scale_draws"),
        ("nvfp4", "with_scale_draws", "nearest_even or stochastic_floor8"),
    ):
        for function in (ms.quantize, ms.fake_quantize):
            with pytest.raises(RuntimeError, match=f"rounding of {scheme}: expected {built}, got {rounding}"):
                function(torch.ones(2, 2), scheme, rounding=rounding)
    with pytest.raises(RuntimeError, match="FP32 or BF16"):
        ms.quantize(torch.ones(2, 2, dtype=torch.float64), "nvfp4")
    with pytest.raises(RuntimeError, match="multiple of 16"):
        ms.hadamard(torch.ones(2, 17))
    with pytest.raises(ValueError, match="depth"):
        ms.gemm(ms.quantize(torch.ones(2, 16), "nvfp4"), ms.quantize(torch.ones(2, 32), "nvfp4"))
    q = ms.quantize(torch.ones(2, 16), "nvfp4")
    q.depth = 32
    with pytest.raises(RuntimeError, match="codes: expected"):
        ms.dequantize(q)


def test_torch_accepts_the_operators():
    x = torch.randn(32, 48, requires_grad=True)
    torch.library.opcheck(torch.ops.microscale.fake_quantize.default, (x, "nvfp4"))
    torch.library.opcheck(torch.ops.microscale.quantize.default, (x.detach(), "ufp4"), {"columns": True})
    torch.library.opcheck(torch.ops.microscale.quantize.default, (x.detach(), "nvfp4_ms_eden"), SCALE_DRAWS)
    torch.library.opcheck(torch.ops.microscale.fake_quantize.default, (x, "nvfp4_ms_eden"), SCALE_DRAWS)
    torch.library.opcheck(torch.ops.microscale.hadamard.default, (x,))
    torch.library.opcheck(torch.ops.microscale.hadamard.default, (x,), {"columns": True, "signs": [5]})
    torch.library.opcheck(torch.ops.microscale.amax.default, (x.detach(),))
    q = ms.quantize(x.detach(), "nvfp4")
    parts = (q.codes, q.scales, q.datum, "nvfp4")
    torch.library.opcheck(torch.ops.microscale.dequantize.default, (*parts, 48))
    torch.library.opcheck(torch.ops.microscale.gemm.default, (*parts, *parts, 48, "f32_blocks"))


@pytest.mark.skipif(len(DEVICES) < 2, reason="no GPU here")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_gpu_gives_the_same_bits(scheme):
    rounding = {"nvfp4": "stochastic_floor8", "ue5m3_fp4": "stochastic_midpoint8"}.get(scheme, "nearest_even")
    for seed, shape in enumerate([(256, 512), (33, 129), (1, 7), (640, 96)]):
        for dtype in (torch.float32, torch.bfloat16):
            x = adversarial(*shape, seed).to(dtype)
            for columns in (False, True):
                how = {"columns": columns, "rounding": rounding, "seed": seed, "stream": 7, **draws_of(scheme)}
                a, b = ms.quantize(x, scheme, **how), ms.quantize(x.cuda(), scheme, **how)
                assert same(a.codes, b.codes) and same(a.scales, b.scales) and same(a.datum, b.datum)
                assert same(ms.dequantize(a), ms.dequantize(b))
                assert same(ms.fake_quantize(x, scheme, **how), ms.fake_quantize(x.cuda(), scheme, **how))
            if not columns or scheme.endswith("2d"):
                continue
            for accumulation in ("exact_f32", "f32_blocks", "blackwell_k64"):
                both = [ms.quantize(t, scheme, **draws_of(scheme)) for t in (x, x.cuda())]
                c = [ms.gemm(q, q, accumulation) for q in both]
                assert same(*c)
