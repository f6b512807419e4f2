"""Lightning: any LightningModule, one callback."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hand import BATCH, RATE, assert_in_half_precision, by_hand, plain_runs, small_net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn
from jacnorm.integrations.indexing import WithIndex

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the library's own, on import
    import lightning as L

    from jacnorm.integrations.lightning import JacobianPenalty

pytestmark = [  # advice on speed and logging
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]


class Lit(L.LightningModule):
    def __init__(self, *, through_forward=True, returns=lambda loss: loss):
        super().__init__()
        self.net, self.through_forward, self.returns = small_net(), through_forward, returns

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x) if self.through_forward else self.net(x), y)
        self.log("train_loss", loss)
        return self.returns(loss)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


def trainer(callback, folder, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    options = {"max_epochs": 2, "enable_checkpointing": False, **quiet, **options}
    return L.Trainer(accelerator="cpu", default_root_dir=folder, callbacks=[callback], **options)


def loader(digits, *, index):
    data = TensorDataset(*digits)
    return DataLoader(WithIndex(data) if index else data, batch_size=BATCH)


@pytest.mark.parametrize(
    ("model", "accumulate", "warm"),
    [
        (lambda: Lit(), 1, True),
        (lambda: Lit(through_forward=False), 3, False),
        (lambda: Lit(returns=lambda loss: {"loss": loss, "more": 1}), 3, True),
    ],
)
def test_the_weights_are_those_of_a_loop_by_hand(model, accumulate, warm, digits, tmp_path):
    model, penalty, expected_penalty = model(), jn.SpectralPenalty(0.5), jn.SpectralPenalty(0.5)
    fit = trainer(JacobianPenalty(penalty), tmp_path, accumulate_grad_batches=accumulate)
    fit.fit(model, loader(digits, index=warm), loader(digits, index=False))
    net = small_net()
    values = by_hand(net, digits, expected_penalty, accumulate=accumulate, warm=warm)
    torch.testing.assert_close(model.net.state_dict(), net.state_dict())
    torch.testing.assert_close(penalty.u, expected_penalty.u)
    assert float(fit.callback_metrics["penalty"]) == pytest.approx(values[-1], rel=1e-4)
    assert float(fit.callback_metrics["sigma"]) == pytest.approx(2 * values[-1], rel=1e-4)
    assert "training_step" not in model.__dict__


def test_steps_that_pay_nothing_are_plain(digits, tmp_path, monkeypatch):
    plain, model, net = plain_runs(monkeypatch), Lit(), small_net()
    lazy = JacobianPenalty(jn.SpectralPenalty(0.5, every=2))
    trainer(lazy, tmp_path).fit(model, loader(digits, index=True))
    values = by_hand(net, digits, jn.SpectralPenalty(0.5, every=2))
    torch.testing.assert_close(model.net.state_dict(), net.state_dict())
    assert len(plain) == values.count(0) == 3


def test_a_checkpoint_holds_the_vectors(digits, tmp_path):
    penalty = jn.SpectralPenalty(0.5)
    fit = trainer(JacobianPenalty(penalty), tmp_path, max_epochs=1)
    fit.fit(Lit(), loader(digits, index=True))
    fit.save_checkpoint(tmp_path / "one.ckpt")
    resumed = jn.SpectralPenalty(0.5)
    model = Lit()
    trainer(JacobianPenalty(resumed), tmp_path).fit(
        model, loader(digits, index=True), ckpt_path=tmp_path / "one.ckpt"
    )
    net, expected = small_net(), jn.SpectralPenalty(0.5)
    by_hand(net, digits, expected)
    torch.testing.assert_close(model.net.state_dict(), net.state_dict())
    torch.testing.assert_close(resumed.u, expected.u)


def test_a_fit_that_failed_leaves_nothing_behind(digits, tmp_path):
    model = Lit(returns=lambda loss: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        trainer(JacobianPenalty(jn.SpectralPenalty(0.5)), tmp_path).fit(model, loader(digits, index=False))
    assert "training_step" not in model.__dict__
    assert "forward" not in model.net.__dict__


class Two(Lit):
    forward = L.LightningModule.forward

    def __init__(self):
        super().__init__(through_forward=False)
        self.critic = nn.Linear(10, 1)


class Manual(Lit):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("model", "module", "message"),
    [
        (Two, None, r"several networks \(net, critic\): say which one"),
        (Two, "critic", "has not called Linear"),
        (Manual, None, "add penalty\\(J\\) before self.manual_backward"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(model, module, message, digits, tmp_path):
    callback = JacobianPenalty(jn.SpectralPenalty(0.5), module)
    with pytest.raises(jn.InputError, match=message):
        trainer(callback, tmp_path).fit(model(), loader(digits, index=False))


def test_the_network_can_be_named(digits, tmp_path):
    model = Two()
    trainer(JacobianPenalty(jn.SpectralPenalty(0.5), "net"), tmp_path).fit(model, loader(digits, index=True))
    net = small_net()
    by_hand(net, digits, jn.SpectralPenalty(0.5))
    torch.testing.assert_close(model.net.state_dict(), net.state_dict())


def test_once_an_epoch_the_penalty_reports(digits, tmp_path):
    penalty = jn.SpectralPenalty(0.5, every=2)
    fit = trainer(JacobianPenalty(penalty), tmp_path)
    fit.fit(Lit(), loader(digits, index=False))
    found = {name.removeprefix("sigma_"): float(v) for name, v in fit.callback_metrics.items()}
    assert found["error"] == pytest.approx(found["estimated"] / found["measured"] - 1, rel=1e-4)
    assert 0.3 < found["cosine"] <= 1
    assert found["sigma"] == pytest.approx(
        float(penalty.norms.mean()), rel=1e-5
    )  # not of the report's samples


class OfTwelve(nn.Module):
    """Takes batches of twelve only, and a report takes fewer samples."""

    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, x):
        return self.net(x.view(12, *x.shape[1:]))


def test_a_warning_points_at_the_line_that_started_the_training(digits, tmp_path):
    model = Lit()
    model.net = OfTwelve()
    fit = trainer(JacobianPenalty(jn.SpectralPenalty(0.5)), tmp_path, max_epochs=1)
    with pytest.warns(UserWarning, match="is not logged") as found:
        fit.fit(model, DataLoader(TensorDataset(*digits), batch_size=12))
    assert {one.filename for one in found if "is not logged" in str(one.message)} == {__file__}


def test_margins_get_their_labels(digits, tmp_path):
    fit = trainer(JacobianPenalty(jn.MarginPenalty(0.1)), tmp_path)
    fit.fit(Lit(), loader(digits, index=False))
    assert float(fit.callback_metrics["norm"]) > 0


def test_products_in_half_precision(digits, tmp_path, half_pays):
    model = Lit()
    callback = JacobianPenalty(jn.SpectralPenalty(0.5), precision=torch.bfloat16)
    trainer(callback, tmp_path).fit(model, loader(digits, index=True))
    assert_in_half_precision(model.net, small_net(), digits)
