# SPDX-License-Identifier: Apache-2.0
"""A sample of differential.py, whose docstring says what it does; test/full runs the rest. The model is tested, too."""

import os

import pytest
import torch

import differential
import differential_cases as cases_of
import differential_model as model

SEED = int(os.environ.get("QUOIT_TEST_SEED", "20260101")) % 1_000_000


@pytest.mark.parametrize(("ranks", "cases", "hosts"), [(4, 250, 1), (3, 60, 1), (2, 60, 1), (4, 100, 2), (3, 60, 3)])
def test_sample(ranks, cases, hosts):
    count, told = differential.play(ranks, SEED * 1_000_000, cases, limit=90, hosts=hosts)
    assert not told, "\n".join(told)
    assert count["cases"] >= cases and count["gloo"] > 0 and count["refusals"] > 0 and count["same bits"] > 0, count


def test_every_call_is_drawn_for_a_group_of_one():
    """The sample of one rank has each call of the program at least once."""
    drawn = {item.call for number in range(150) for item in differential.draw_case(SEED * 1_000_000 + number, 1).items}
    assert drawn == set(cases_of.REDUCING + cases_of.MOVING)
    count, told = differential.play(1, SEED * 1_000_000, 150, limit=60)
    assert not told, "\n".join(told)
    assert count["cases"] == 150


@pytest.mark.parametrize("op", model.OPS)
@pytest.mark.parametrize("dtype", model.REDUCED, ids=str)
def test_model_knows_wrong_from_right(dtype, op):
    """What torch itself computes is right; one unit in the last place beyond what rounding explains is not."""
    if not model.is_supported(op, dtype):
        return
    ones = [torch.ones(3).to(dtype), torch.full((3,), 2.0).to(dtype)]
    if dtype == torch.bool:
        ones = [torch.tensor([True, False, True]), torch.tensor([True, True, False])]
    numbers = {"SUM": 3, "AVG": 1.5, "PRODUCT": 2, "MIN": 1, "MAX": 2, "BAND": 0, "BOR": 3, "BXOR": 3, "PREMUL_SUM": 6}
    right = torch.full((3,), float(numbers[op])).to(dtype)
    if dtype == torch.bool:
        kind = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
        right = {"BOR": torch.tensor([True, True, True]), "BAND": torch.tensor([True, False, False]), "BXOR": torch.tensor([False, True, True])}[kind]
    assert model.judge(op, ones, right, 2.0) == ""
    wrong = right.clone()
    memory = wrong.view(torch.uint8)
    memory[0 if dtype.itemsize == 1 or not dtype.is_floating_point else dtype.itemsize - 2] ^= 1 if dtype == torch.bool else 4
    assert "1 of" in model.judge(op, ones, wrong, 2.0), (right, wrong)
