"""Curves keep their constraints exactly and are as precise as float32 allows, wherever the control points lie."""

from __future__ import annotations

import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from autoseg.errors import InputError
from autoseg.losses.curves import NARROW, STEEP, CurveSpace

EPS = 2.0**-23
POINTS = "control_points of a bezier curve with 2 pieces"
unit = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))


@st.composite
def bezier_thetas(draw):
    space = CurveSpace("bezier", draw(st.integers(1, 4)))
    return space, [draw(unit) for _ in space.names]


@st.composite
def linear_thetas(draw):
    space = CurveSpace("linear", draw(st.integers(1, 7)))
    return space, [draw(st.floats(-30, 30)) for _ in space.names]


@st.composite
def spline_thetas(draw):
    space = CurveSpace("spline", draw(st.integers(1, 7)))
    return space, [draw(st.floats(-30, 30)) for _ in space.names]


def grid(space, theta):
    points = space.control_points(theta)
    knots = points[0::2] if space.family == "bezier" else [k / space.pieces for k in range(space.pieces)]
    ends = [*np.geomspace(1e-12, 1, 60), *(1 - np.geomspace(1e-7, 1, 60))]
    return torch.tensor(sorted({0.0, 1.0, *knots, *ends, *np.linspace(0, 1, 101)}), dtype=torch.float32)


@given(st.one_of(bezier_thetas(), linear_thetas(), spline_thetas()))
def test_ends_are_exact_and_the_curve_never_falls(case):
    space, theta = case
    y = grid(space, theta)
    value, slope = space.curve(theta).value_and_slope(y)
    assert value[0] == 0
    assert value[-1] == 1
    assert value.diff().min() >= -2e-6  # rounding, at a steep place
    assert slope.isfinite().all()
    assert slope.min() >= -1e-3
    assert slope.max() <= 2 / STEEP


def exact(space, theta, y):
    """g and g' in 40 digits by the textbook solution of the quadratic; the piece that float32 arithmetic is in."""
    points = space.control_points(theta)
    u, v = [0.0, *points[0::2], 1.0], [0.0, *points[1::2], 1.0]
    wide = [k for k in range(0, len(u) - 2, 2) if u[k + 2] - u[k] >= NARROW]
    k = max((k for k in wide if np.float32(y) >= np.float32(u[k])), default=wide[0])
    with mpmath.workdps(40):
        u0, u1, u2, v0, v1, v2 = (mpmath.mpf(x) for x in (*u[k : k + 3], *v[k : k + 3]))
        a, b, c = u0 - 2 * u1 + u2, 2 * (u1 - u0), u0 - mpmath.mpf(float(y))
        root = mpmath.sqrt(max(b * b - 4 * a * c, 0))
        s = (-b + root) / (2 * a) if a else -c / b
        s = min(max(s, 0), 1)
        g = (1 - s) ** 2 * v0 + 2 * s * (1 - s) * v1 + s**2 * v2
        return float(g), float((2 * (v1 - v0) + 2 * s * (v0 - 2 * v1 + v2)) / max(root, mpmath.mpf(STEEP)))


@given(st.one_of(bezier_thetas(), linear_thetas(), spline_thetas()))
def test_numpy_and_torch_give_the_same_numbers(case):
    space, theta = case
    curve, y = space.curve(theta), grid(space, theta).double()
    np.testing.assert_allclose(curve(y.numpy()), curve(y).numpy(), rtol=1e-12, atol=1e-12)


def test_a_curve_takes_floats():
    with pytest.raises(TypeError, match="int64"):
        CurveSpace().curve([0.5] * 6)(torch.tensor([1]))


@given(bezier_thetas(), st.one_of(st.floats(0, 1), st.floats(0, 1e-4), st.floats(0.9999, 1)))
@example((CurveSpace("bezier"), CurveSpace("bezier").identity), 0.3)
@example((CurveSpace("bezier", 1), [0.5 + 1e-7, 0.9]), 0.6)
@example((CurveSpace("bezier", 1), [0.0, 1.0]), 1e-9)
@example((CurveSpace("bezier", 1), [1.0, 0.0]), 1 - 1e-7)
def test_float32_error_is_within_its_bound_of_high_precision(case, y):
    space, theta = case
    y = float(np.float32(y))
    assume(0 < y < 1)
    g, slope = exact(space, theta, y)
    got = space.curve(theta)(torch.tensor([y], dtype=torch.float32)).item()
    assert abs(got - g) <= 1e-6 + 4 * EPS * abs(slope)


@pytest.mark.parametrize("exponent", range(2, 10))
@pytest.mark.parametrize("pieces", [1, 2])
def test_slopes_are_capped_also_where_rounding_would_make_them_infinite(exponent, pieces):
    theta = [1 - 10.0**-exponent, 0.5] * (2 * pieces - 1)
    near_one = 1 - torch.arange(40) * 2.0**-24
    for y in (near_one, torch.linspace(0, 1, 100), near_one.double()):
        value, slope = CurveSpace("bezier", pieces).curve(theta).value_and_slope(y)
        assert slope.isfinite().all()
        assert slope.max() <= 2 / STEEP
        assert value.max() <= 1


@given(bezier_thetas())
def test_the_derivative_is_the_derivative(case):
    space, theta = case
    curve = space.curve(theta)
    y = torch.linspace(0.013, 0.987, 50, dtype=torch.float64)
    h = 1e-7
    points = space.control_points(theta)
    smooth = torch.stack([(y - knot).abs() > 1e-3 for knot in points[0::2]]).all(0)
    _, slope = curve.value_and_slope(y)
    numeric = (curve.value_and_slope(y + h)[0] - curve.value_and_slope(y - h)[0]) / (2 * h)
    torch.testing.assert_close(slope[smooth], numeric[smooth], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "space", [CurveSpace("bezier"), CurveSpace("bezier", 1), CurveSpace("linear"), CurveSpace("spline")]
)
def test_gradcheck_in_float64(space):
    theta = np.random.default_rng(2).uniform(0.2, 0.8, len(space.names))
    y = torch.tensor([0.03, 0.21, 0.44, 0.57, 0.93], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(space.curve(theta), (y,))


@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("family", "monotone", "truth_table"),
    [
        *(("bezier", monotone, truth_table) for monotone in (True, False) for truth_table in (True, False)),
        *(
            (family, *constraints)
            for family in ("linear", "spline")
            for constraints in ((True, True), (False, True), (False, False))
        ),
    ],
)
def test_identity_is_the_identity_and_theta_and_points_go_both_ways(family, pieces, monotone, truth_table):
    space = CurveSpace(family, pieces, monotone, truth_table)
    y = torch.linspace(0, 1, 41)
    torch.testing.assert_close(space.curve(space.identity)(y), y, rtol=0, atol=3e-7)
    theta = np.random.default_rng(pieces).uniform(0.1, 0.9, len(space.names)).tolist()
    points = space.control_points(theta)
    again = space.theta(points)
    if space.bounded:
        np.testing.assert_allclose(again, theta, atol=1e-9)
    np.testing.assert_allclose(space.control_points(again), points, atol=1e-9)


def test_the_identity_starts_where_design_and_release_start():
    np.testing.assert_allclose(CurveSpace("bezier").identity, [1 / 4, 1 / 4, 1 / 3, 1 / 3, 1 / 2, 1 / 2])
    assert CurveSpace("bezier", 1).identity == [0.5, 0.5]
    assert CurveSpace("linear").identity == [0.0] * 5


def test_linear_slopes_are_n_softmax_z():
    z = [0.3, -1.0, 2.0, 0.0, 0.5]
    slopes = 5 * torch.tensor(z).softmax(0)
    _, slope = CurveSpace("linear").curve(z).value_and_slope(torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))
    torch.testing.assert_close(slope, slopes)


@given(spline_thetas())
def test_a_spline_has_no_jump_in_its_slope_and_is_the_sum_of_b_splines(case):
    space, theta = case
    u, v = space.knots(space.control_points(theta))
    knots = np.linspace(0, 1, space.pieces + 1)
    y = np.linspace(0, 1, 57)
    expected = BSpline([0, 0, *knots, 1, 1], v, 2)
    np.testing.assert_allclose(space.curve(theta)(y), expected(y), atol=1e-12)
    for knot in knots[1:-1]:
        _, slope = space.curve(theta).value_and_slope(np.array([knot - 1e-9, knot + 1e-9]))
        assert slope[0] == pytest.approx(slope[1], abs=1e-5)
    np.testing.assert_allclose(BSpline([0, 0, *knots, 1, 1], u, 2)(y), y, atol=1e-12)  # the identity


def test_without_constraints_the_curve_may_fall_and_its_ends_move():
    space = CurveSpace("bezier", 2, monotone=False, truth_table=False)
    assert space.names == ("u1", "v1", "u2", "v2", "u3", "v3", "v0", "v4")
    curve = space.curve([0.25, 0.9, 1 / 3, 0.1, 0.5, 0.8, 0.4, 0.6])
    y = torch.linspace(0, 1, 50)
    value = curve(y)
    assert (value[0].item(), value[-1].item()) == pytest.approx((0.4, 0.6))
    assert value.diff().min() < -0.01
    truth_only = CurveSpace("bezier", 2, monotone=False)
    ends = truth_only.curve([0.25, 0.9, 1 / 3, 0.1, 0.5, 0.8])(torch.tensor([0.0, 1.0]))
    assert ends.tolist() == [0.0, 1.0]


def test_at_a_jump_the_curve_takes_the_value_to_the_right_and_at_zero_it_is_zero():
    middle = CurveSpace("bezier", 3).curve_of([0.25, 0.1, 0.5, 0.2, 0.5, 0.5, 0.5, 0.8, 0.75, 0.9])
    assert middle(torch.tensor([0.4999, 0.5])).tolist() == pytest.approx([0.2, 0.8], abs=1e-3)
    first = CurveSpace("bezier", 2).curve_of([0.0, 0.1, 0.0, 0.6, 0.5, 0.8])
    assert first(torch.tensor([0.0, 1e-6])).tolist() == pytest.approx([0.0, 0.6], abs=1e-3)
    last = CurveSpace("bezier", 2).curve_of([0.5, 0.2, 1.0, 0.4, 1.0, 0.9])
    assert last(torch.tensor([1 - 1e-6, 1.0])).tolist() == pytest.approx([0.4, 1.0], abs=1e-3)


@pytest.mark.parametrize(
    ("call", "where", "what"),
    [
        (lambda: CurveSpace("besier"), "", "unknown family of curves 'besier'; did you mean 'bezier'"),
        (lambda: CurveSpace("bezier", 0), "pieces", "0"),
        (lambda: CurveSpace("bezier", 10**9), "pieces", "1000000000"),
        (lambda: CurveSpace(monotone="yes"), "monotone", "'yes'"),
        (lambda: CurveSpace().curve(0.5), "theta", "0.5"),
        (lambda: CurveSpace().curve([None] * 6), "theta", "None"),
        (lambda: CurveSpace("linear", truth_table=False), "truth_table", "g(1) = 1"),
        (lambda: CurveSpace().curve([0.5] * 5), "theta of a bezier curve with 2 pieces", "5 numbers"),
        (lambda: CurveSpace().curve([0.5] * 5 + [1.2]), "theta of a bezier curve with 2 pieces", "1.2"),
        (lambda: CurveSpace("linear", 1).curve([float("nan")]), "theta", "nan"),
        (lambda: CurveSpace().curve_of([0.5, 0.1, 0.4, 0.2, 0.6, 0.3]), POINTS, "u falls"),
        (lambda: CurveSpace().curve_of([0.2, 0.5, 0.4, 0.2, 0.6, 0.9]), POINTS, "not monotone"),
        (lambda: CurveSpace("linear", 2).curve([0.5]), "theta of a linear curve with 2 pieces", "1 numbers"),
    ],
)
def test_bad_parameters_are_named(call, where, what):
    with pytest.raises(InputError) as error:
        call()
    assert error.value.where == where
    assert what in error.value.what


def test_one_more_family_is_one_more_class():
    code = """
from autoseg.losses import curves

class Stairs(curves.Linear):
    usual_pieces = 7

curves.FAMILIES["stairs"] = Stairs()

from autoseg.losses.surrogate import Surrogate
from autoseg.search.settings import Search
from autoseg.search.space import search_space, surrogate

search = Search(metric="NSD", family="stairs")
space = search_space(search)
made = surrogate(search, space.initial)
print(len(space.names), made.pieces, Surrogate.read(made.content(), "here") == made)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["14", "7", "True"]
