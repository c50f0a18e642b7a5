"""Weights of tokens, KL estimates, corrections, and all of it in one loss: numbers worked out by hand."""

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import tensor
from torch.testing import assert_close

from tandem.algo import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    Evidence,
    Tokens,
    figure_names,
    importance_weights,
    objective,
    token_weights,
)
from tandem.config import AlgoConfig, Config, CorrectionConfig, KlConfig


@pytest.mark.parametrize(
    ("section", "field", "table"),
    [
        (AlgoConfig, "aggregation", AGGREGATIONS),
        (KlConfig, "estimator", KL_ESTIMATORS),
        (CorrectionConfig, "kind", CORRECTIONS),
    ],
)
def test_config_knows_the_same_names(section: Any, field: str, table: dict) -> None:
    assert set(get_args(section.model_fields[field].annotation)) == set(table)


@pytest.mark.parametrize(
    ("name", "expected"),
    # trajectories of 1 and 3 tokens, at most 8, and one of none
    [
        ("token_mean", [1 / 4, 1 / 4, 0]),
        ("seq_mean_token_mean", [1 / 2, 1 / 6, 0]),
        ("seq_mean_token_sum", [1 / 2, 1 / 2, 0]),
        ("seq_mean_token_sum_norm", [1 / 16, 1 / 16, 0]),
    ],
)
def test_weights_by_hand(name: str, expected: list[float]) -> None:
    assert_close(token_weights(name, tensor([1, 3, 0]), 8), tensor(expected))
    assert token_weights(name, tensor([0]), 8).tolist() == [0.0]


@pytest.mark.parametrize("name", ["token_mean", "seq_mean_token_mean"])
@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=30).filter(any))
def test_weights_of_a_mean_sum_to_one(name: str, lengths: list[int]) -> None:
    weights = token_weights(name, tensor(lengths), 300)
    assert float((weights.double() * tensor(lengths)).sum()) == pytest.approx(1, abs=1e-6)


def test_kl_estimates_by_hand() -> None:
    # policy 0.5, base 0.25: d = ln 2 = 0.6931472; d^2 / 2 = 0.2402265; e^-d - 1 + d = 0.5 - 1 + 0.6931472
    d = tensor([math.log(2), 0.0, -math.log(2)])
    assert_close(KL_ESTIMATORS["k1"](d), tensor([0.6931472, 0.0, -0.6931472]))
    assert_close(KL_ESTIMATORS["k2"](d), tensor([0.2402265, 0.0, 0.2402265]))
    assert_close(KL_ESTIMATORS["k3"](d), tensor([0.1931472, 0.0, 0.3068528]))  # 2 - 1 - ln 2


POLICY, BASE = tensor([0.5, 0.3, 0.2], dtype=torch.float64), tensor([0.2, 0.2, 0.6], dtype=torch.float64)


@pytest.mark.parametrize(("name", "value"), [("k1", "exact"), ("k2", None), ("k3", "exact")])
def test_kl_estimates_are_unbiased_where_they_say_so(name: str, value: str | None) -> None:
    """In expectation over the policy, of three tokens; k2 is off."""
    estimate = (POLICY * KL_ESTIMATORS[name]((POLICY / BASE).log())).sum()
    exact = (POLICY * (POLICY / BASE).log()).sum()
    assert bool(torch.isclose(estimate, exact)) == (value == "exact")


def test_kl_gradients_in_the_loss_are_what_the_page_says() -> None:
    """The expected gradient of each estimator, tokens sampled by the policy, against exact gradients."""
    scores = POLICY.log().requires_grad_()
    logprobs = torch.log_softmax(scores, 0)
    exact = (logprobs.exp() * (logprobs - BASE.log())).sum()
    other = (BASE * (BASE.log() - logprobs)).sum()
    wanted = {"k1": torch.zeros(3, dtype=torch.float64)}
    [wanted["k2"]] = torch.autograd.grad(exact, scores, retain_graph=True)
    [wanted["k3"]] = torch.autograd.grad(other, scores, retain_graph=True)
    for name, gradient in wanted.items():
        sampled = (POLICY * KL_ESTIMATORS[name](logprobs - BASE.log())).sum()
        [found] = torch.autograd.grad(sampled, scores, retain_graph=True)
        assert_close(found, gradient)


@given(st.lists(st.floats(-20, 20), min_size=1))
def test_k2_and_k3_are_never_negative(differences: list[float]) -> None:
    for name in ("k2", "k3"):
        assert float(KL_ESTIMATORS[name](tensor(differences, dtype=torch.float64)).min()) >= -1e-12


def _weights(kind: str, level: str, **bounds: float) -> list[float]:
    """Of ratios 4, 0.5 in one sequence and 1.5, 0.2 in another."""
    rho = tensor([4.0, 0.5, 1.5, 0.2])
    tokens = Tokens(rho.log(), torch.zeros(4), torch.zeros(4), tensor([0, 0, 1, 1]))
    config = CorrectionConfig.model_validate({"kind": kind, "level": level, **bounds})
    return importance_weights(tokens, rho.log(), torch.zeros(4), config).tolist()


def test_corrections_by_hand() -> None:
    assert _weights("none", "token") == [1, 1, 1, 1]
    assert _weights("truncate", "token", high=2) == pytest.approx([2, 0.5, 1.5, 0.2])
    assert _weights("mask", "token", low=0.4, high=2) == pytest.approx([0, 0.5, 1.5, 0])
    # of the sequences: 4 * 0.5 = 2 and 1.5 * 0.2 = 0.3
    assert _weights("truncate", "sequence", high=1.8) == pytest.approx([1.8, 1.8, 0.3, 0.3])
    assert _weights("mask", "sequence", low=0.4, high=3) == pytest.approx([2, 2, 0, 0])


def test_hopeless_gap_is_cut_or_dropped_and_never_infinite() -> None:
    tokens = Tokens(tensor([0.0]), tensor([0.0]), tensor([1.0]), tensor([0]))
    for kind, expected in (("truncate", 2.0), ("mask", 0.0)):
        config = CorrectionConfig.model_validate({"kind": kind})
        assert importance_weights(tokens, tensor([0.0]), tensor([-200.0]), config).tolist() == [expected]


def _case(entropy: list[float]) -> tuple[Tokens, Evidence]:
    """Two tokens of probability 0.5, sampled at 0.4; base 0.25; weights 1/2."""
    learner = tensor([0.5, 0.5]).log().requires_grad_()
    tokens = Tokens(learner, learner.detach(), tensor([1.0, -1.0]), tensor([0, 1]))
    evidence = Evidence(
        weights=tensor([0.5, 0.5]),
        rollout_logprobs=tensor([0.4, 0.4]).log(),
        start_logprobs=learner.detach(),
        ref_logprobs=tensor([0.25, 0.25]).log(),
        entropy=tensor(entropy),
    )
    return tokens, evidence


def test_objective_by_hand() -> None:
    # correction 0.5 / 0.4 = 1.25 at ratio 1: 1.25 * -A; k2 = 0.2402265 at 0.1; entropy 0.3 and 0.5 at 0.01
    algo = AlgoConfig.model_validate(
        {
            "ratio": "learner",
            "correction": {"kind": "truncate"},
            "kl": {"coef": 0.1, "estimator": "k2"},
            "entropy_coef": 0.01,
        }
    )
    loss, figures = objective(*_case([0.3, 0.5]), algo)
    # half of (-1.25 + 0.02402265 - 0.003) and half of (1.25 + 0.02402265 - 0.005)
    assert loss.item() == pytest.approx(0.02402265 - 0.004, abs=1e-7)
    assert set(figures) == set(figure_names(algo))
    assert_close(figures["correction_weight"], tensor([1.25, 1.25]))
    assert_close(figures["ref_kl"], tensor([0.2402265, 0.2402265]))
    assert_close(figures["logprob_gap"], tensor([0.2231436, 0.2231436]))  # ln 1.25
    assert figures["approx_kl"].tolist() == [0.0, 0.0]
    assert not any(figure.requires_grad for figure in figures.values())


def test_kl_in_the_reward_is_no_term_of_the_loss() -> None:
    algo = AlgoConfig.model_validate({"kl": {"coef": 0.1, "place": "reward"}})
    assert objective(*_case([0.0, 0.0]), algo)[0].item() == pytest.approx(0)


def test_supervised_figures_say_nothing_of_a_rollout() -> None:
    assert figure_names(AlgoConfig(loss="sft")) == ("entropy",)


@pytest.mark.parametrize(
    ("algo", "said"),
    [
        ({"advantage": "grop"}, "'grpo', 'dr_grpo', 'rloo', 'reinforce_pp' or 'maxrl'"),
        ({"loss": "ppo"}, "'ppo_clip', 'gspo', 'cispo' or 'sft'"),
        ({"kl": {"estimator": "k4"}}, "'k1', 'k2' or 'k3'"),
        ({"dual_clip": 0.5}, "dual_clip must be above 1"),
        ({"correction": {"kind": "mask", "low": 3}, "ratio": "learner"}, "correction.low is above correction.high"),
        ({"correction": {"kind": "mask"}}, "set learner.algo.ratio to learner"),
        ({"loss": "sft", "kl": {"coef": 0.1, "place": "reward"}}, "loss sft has no reward; set kl.place to loss"),
        ({"kl": {"coef": 0.1, "estimator": "k1"}}, "k1 in the loss is only noise"),
        ({"advantage": "maxrl", "kl": {"coef": 0.1, "place": "reward"}}, "maxrl needs returns that are not negative"),
        ({"loss": "cispo", "dual_clip": 3}, "algo.dual_clip has no effect with loss cispo; leave it out"),
        *(
            ({"loss": "sft", **setting}, f"algo.{next(iter(setting))} has no effect with loss sft; leave it out")
            for setting in (
                {"advantage": "rloo"},
                {"clip_low": 0.1},
                {"clip_high": 0.3},
                {"dual_clip": 3},
                {"ratio": "learner"},
                {"correction": {"kind": "mask"}},
                {"drop_zero_variance": False},
                {"gap_warning": 0.1},
            )
        ),
    ],
)
def test_settings_that_make_no_sense_are_named(algo: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Config.model_validate({"model": {"path": "x"}, "learner": {"algo": algo}})


@pytest.mark.parametrize(
    "algo",
    [
        {"loss": "cispo", "clip_high": 4.0, "ratio": "learner", "correction": {"kind": "mask"}},
        {"loss": "sft", "mask_overlong": True, "entropy_coef": 0.1, "kl": {"coef": 0.1}, "clip_low": 0.2},
        {"kl": {"coef": 0.1, "estimator": "k1", "place": "reward"}},
        {"kl": {"estimator": "k1"}, "advantage": "maxrl"},
        {"advantage": "maxrl", "kl": {"coef": 0.1}},
    ],
)
def test_settings_that_have_an_effect_or_their_default_are_taken(algo: dict) -> None:
    AlgoConfig.model_validate(algo)


def test_groups_kept_without_a_signal_and_replaced_for_it_are_a_contradiction() -> None:
    sections = {"model": {"path": "x"}, "learner": {"algo": {"drop_zero_variance": False}}}
    Config.model_validate(sections)
    with pytest.raises(ValidationError, match=r"rollout\.max_refills replaces the groups .*; set one of them back"):
        Config.model_validate({**sections, "rollout": {"max_refills": 1}})


def test_minibatches_are_of_what_a_step_learns_from() -> None:
    def config(minibatches: int, loss: str) -> Config:
        learner = {"minibatches": minibatches, "algo": {"loss": loss}}
        sizes = {"rollout": {"groups_per_step": 4}, "sft": {"batch": 8}}
        return Config.model_validate({"model": {"path": "x"}, "learner": learner, **sizes})

    config(4, "ppo_clip")
    config(8, "sft")
    with pytest.raises(ValidationError, match=r"more than rollout\.groups_per_step"):
        config(5, "ppo_clip")
    with pytest.raises(ValidationError, match=r"more than sft\.batch"):
        config(9, "sft")


def test_kl_to_a_base_that_is_gone_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"set learner\.algo\.kl\.coef to 0, or train lora"):
        Config.model_validate({"model": {"path": "x"}, "learner": {"trainable": "full", "algo": {"kl": {"coef": 1}}}})


def test_deterministic_run_takes_the_learners_own_ratio() -> None:
    def ratio(**sections: Any) -> bool:
        return Config.model_validate({"model": {"path": "x"}, **sections}).learner_ratio

    assert not ratio()
    assert ratio(run={"deterministic": True})
    assert ratio(learner={"algo": {"ratio": "learner"}})
    assert not ratio(run={"deterministic": True}, learner={"algo": {"loss": "sft"}})
