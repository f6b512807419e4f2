"""Hugging Face: image and text classifiers built from a config, and the Trainer."""

import pytest
import torch
import torch.nn.functional as F
from hand import BATCH, RATE, assert_in_half_precision, by_hand, plain_runs
from oracles import arrived, dense, gradient, mean_sigma, push
from torch import nn
from torch.utils.data import SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import jacnorm as jn
from jacnorm.integrations.indexing import WithIndex
from jacnorm.integrations.transformers import RegularizedTrainer

TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
TINY |= {"initializer_range": 0.3}  # for a Jacobian that matters
IDS = torch.tensor([[1, 5, 3, 2, 4], [7, 2, 6, 0, 0], [3, 1, 0, 0, 0], [8, 8, 2, 5, 0]])
MASK = (IDS > 0).long()
LABELS = torch.tensor([0, 1, 2, 1])


def vit(**options):
    torch.manual_seed(0)
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **TINY, **options)
    return ViTForImageClassification(config)


def resnet(**options):
    torch.manual_seed(0)
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 6], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes, **options))


def bert(**options):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=9, max_position_embeddings=6, num_labels=3, **TINY, **options)
    return BertForSequenceClassification(config)


class Logits(nn.Module):
    """The same dropout each time, so that it can be compared."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, **kwargs):
        torch.manual_seed(1)
        name = "inputs_embeds" if kwargs else "pixel_values"
        return self.model(**{name: x}, **kwargs).logits


@pytest.mark.parametrize(
    ("make", "training"),
    [
        (vit, False),
        (vit, True),
        (bert, False),
        (bert, True),
        (resnet, False),
        (resnet, True),
    ],
)
def test_products_are_those_of_autograd(make, training):
    dropout = {} if make is resnet else {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model = Logits(make(**dropout)).double().train(training)
    others = {"attention_mask": MASK} if make is bert else {}
    x = torch.randn(4, *((5, 8) if make is bert else (1, 8, 8)), dtype=torch.float64)
    expected = dense(lambda z: model(z, **others), x)
    for _ in range(2):
        J = jn.linearize(model, x, **others)
        assert (J.engine, J.reason) == ("layerwise", None)
        torch.testing.assert_close(J.dense(), expected)
        v = torch.randn_like(x)
        torch.testing.assert_close(J.jvp(v), push(expected, v))
    if make is bert:  # padding does not count
        assert not J.dense().view(4, 3, 5, 8)[:, :, MASK[1] == 0][1].any()


def test_the_penalty_of_a_text_classifier_reaches_all_its_weights():
    model = bert().double().eval()

    def logits(e, mask):
        return model(inputs_embeds=e, attention_mask=mask).logits

    embedded = model.get_input_embeddings()(IDS)
    expected = gradient(mean_sigma(dense(lambda e: logits(e, MASK), embedded)), model)
    jn.AnalyticPenalty(weight=1.0)(jn.linearize(logits, embedded, MASK)).backward()
    torch.testing.assert_close(arrived(model), expected)
    assert model.get_input_embeddings().weight.grad.norm() > 0


# ---- The Trainer -------------------------------------------------------------------------------------


class InOrder(RegularizedTrainer):
    def _get_train_sampler(self, train_dataset=None):
        return SequentialSampler(self.train_dataset)


def trainer(model, data, penalty, folder, *, accumulate=1, precision=None, **options):
    arguments = TrainingArguments(
        output_dir=str(folder),
        optim="sgd",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        logging_steps=1,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        **{"num_train_epochs": 2, "save_strategy": "no", **options},
    )
    data_sets = {"train_dataset": data, "eval_dataset": data}
    return InOrder(model, arguments, penalty=penalty, precision=precision, **data_sets)


def image_set(digits, *, index):
    data = [{"pixel_values": x, "labels": y} for x, y in zip(*digits, strict=True)]
    return WithIndex(data) if index else data


@pytest.mark.parametrize(("accumulate", "warm"), [(1, True), (3, True), (3, False)])
def test_the_weights_are_those_of_a_loop_by_hand(accumulate, warm, digits, tmp_path):
    model, penalty = vit(), jn.SpectralPenalty(0.5)
    fit = trainer(model, image_set(digits, index=warm), penalty, tmp_path, accumulate=accumulate)
    fit.train()
    expected, expected_penalty = vit(), jn.SpectralPenalty(0.5)
    values = by_hand(Logits(expected), digits, expected_penalty, accumulate=accumulate, warm=warm)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(penalty.u, expected_penalty.u, rtol=1e-3, atol=1e-4)
    logged = [entry for entry in fit.state.log_history if "penalty" in entry]
    assert logged[-1]["penalty"] == pytest.approx(sum(values[-accumulate:]) / accumulate, rel=1e-3)
    assert logged[-1]["sigma"] == pytest.approx(2 * logged[-1]["penalty"])
    assert fit.evaluate()["eval_loss"] > 0


def test_steps_that_pay_nothing_are_plain(digits, tmp_path, monkeypatch):
    plain, model, expected = plain_runs(monkeypatch), vit(), vit()
    trainer(model, image_set(digits, index=True), jn.SpectralPenalty(0.5, every=2), tmp_path).train()
    values = by_hand(Logits(expected), digits, jn.SpectralPenalty(0.5, every=2))
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    assert len(plain) == values.count(0) == 3


def test_a_loss_inside_the_model_keeps_the_layerwise_engine(digits, tmp_path):
    engines = []
    penalty = jn.SpectralPenalty(0.5)
    penalty.register_forward_pre_hook(lambda _, args: engines.append(args[0].engine))
    trainer(resnet(), image_set(digits, index=False), penalty, tmp_path).train()
    assert set(engines) == {"layerwise"}


def test_going_on_from_a_checkpoint_ends_with_the_same_weights(digits, tmp_path):
    ended = {}
    for name, checkpoint in {"whole": None, "parts": tmp_path / "whole" / "checkpoint-3"}.items():
        # Not ViT: transformers 5.22 saves its layers under old names and does not find them again.
        model, penalty = resnet(), jn.SpectralPenalty(0.5)
        data = image_set(digits, index=True)
        fit = trainer(model, data, penalty, tmp_path / name, save_strategy="epoch")
        fit.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        ended[name] = {**model.state_dict(), "u": penalty.u}
    torch.testing.assert_close(ended["parts"], ended["whole"])


def test_text_is_seen_through_its_embeddings(tmp_path):
    data = [
        {"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(IDS, MASK, LABELS, strict=True)
    ]
    model, expected = (bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) for _ in range(2))
    trainer(model, data, jn.SpectralPenalty(0.5), tmp_path, num_train_epochs=1).train()
    J = jn.linearize(
        lambda e: expected(inputs_embeds=e, attention_mask=MASK).logits, expected.get_input_embeddings()(IDS)
    )
    (F.cross_entropy(J.output, LABELS) + jn.SpectralPenalty(0.5)(J)).backward()
    torch.optim.SGD(expected.parameters(), RATE).step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)


def test_attention_is_recomputed_as_it_was_computed(tmp_path, digits):
    ended = [vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) for _ in range(2)]
    for model, recompute in zip(ended, (False, True), strict=True):
        options = {"gradient_checkpointing": recompute, "max_steps": 2}
        trainer(model, image_set(digits, index=True), jn.SpectralPenalty(0.5), tmp_path, **options).train()
    torch.testing.assert_close(ended[1].state_dict(), ended[0].state_dict(), rtol=1e-4, atol=1e-6)


def test_products_in_half_precision(digits, tmp_path, half_pays):
    model, penalty = vit(), jn.SpectralPenalty(0.5)
    trainer(model, image_set(digits, index=True), penalty, tmp_path, precision=torch.bfloat16).train()
    assert_in_half_precision(model, vit(), digits, Logits)
