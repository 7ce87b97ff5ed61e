"""One operator between two linear layers, against autograd and against dense matrices.

`Between(f)` is `head(f(ReLU(W x)))` or `head(f(W x))`. The operator's own matrix is its Jacobian, found by autograd on
a single sample; the Routing Game at it follows S13, S17 or S18 on that matrix.
"""

import torch
from torch import nn

import backplay as bp
from closeness import assert_near


class Between(nn.Module):
    """A linear layer, an operator, a linear head. `positive` puts a ReLU before the operator."""

    def __init__(self, function, shape, positive=False, classes=4):
        super().__init__()
        self.function, self.shape, self.positive = function, tuple(shape), positive
        size = int(torch.tensor(shape).prod())
        self.first = nn.Linear(5, size)
        with torch.no_grad():
            found = function(torch.randn(2, *shape, dtype=torch.float64))
        self.head = nn.Linear(found[0].numel(), classes)
        self.double().eval()

    def before(self, x):
        h = self.first(x).unflatten(1, self.shape)
        return h.relu() if self.positive else h * 1.0  # the operator may write into it

    def forward(self, x):
        return self.head(self.function(self.before(x)).flatten(1))


def inputs(batch=3):
    return torch.randn(batch, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def jacobian(function, h):
    """(outputs, inputs) of one sample."""
    found = torch.autograd.functional.jacobian(lambda a: function(a[None] * 1.0)[0].flatten(), h)
    return found.flatten(1)


def power(a, tau):
    return torch.where(a > 0, a.clamp(min=1e-300) ** (1 / tau), 0)


def affine_rule(weight, a, relevance, alpha, beta, epsilon, tau):
    """S13 and S14: `α` of the positive stream minus `β` of the negative one, `ε` outside."""
    contributions = weight * a
    carried = torch.zeros_like(a)
    for factor, part in ((alpha, contributions.clamp(min=0)), (-beta, (-contributions).clamp(min=0))):
        scores = power(part, tau)
        total = scores.sum(1, keepdim=True) + (epsilon ** (1 / tau) if epsilon else 0.0)
        share = torch.where(total > 0, scores / torch.where(total > 0, total, 1), 0)
        carried = carried + factor * (share * relevance[:, None]).sum(0)
    return carried


def mix_rule(weight, a, relevance, alpha, beta, epsilon, tau):
    """S18: one stream for non-negative operands and weights, else an affine node."""
    if bool((weight >= 0).all()) and bool((a >= 0).all()):
        scores = power(weight * a, tau)
        total = scores.sum(1, keepdim=True)
        return (torch.where(total > 0, scores / torch.where(total > 0, total, 1), 0) * relevance[:, None]).sum(0)
    return affine_rule(weight, a, relevance, alpha, beta, epsilon, tau)


def move_rule(weight, a, relevance, *modes):
    """S17: elements that are moved or chosen take their mass with them."""
    return ((weight != 0).to(a) * relevance[:, None]).sum(0)


def routing_map(model, rule, x, target, alpha=2.0, beta=1.0, epsilon=0.1, tau=1.0):
    """The Routing Game's map of one sample, layer by layer in dense form."""
    modes = alpha, beta, epsilon, tau
    with torch.no_grad():
        h = model.before(x[None])[0]
        y = model.function(h[None] * 1.0).flatten()
        value = model(x[None])[0, target]
    above = affine_rule(model.head.weight[target][None], y, value[None], *modes)
    below = rule(jacobian(model.function, h), h.flatten(), above, *modes)
    if model.positive:
        below = below * (h.flatten() > 0)
    return affine_rule(model.first.weight, x, below, *modes)


def check_gradient(network, model):
    """The Stopping map is the gradient, for one sample, for three, and for more than were captured."""
    game, x = bp.StoppingGame(network), inputs(5)
    leaf = x.clone().requires_grad_()
    target = [0, 1, 2, 3, 0]
    (expected,) = torch.autograd.grad(model(leaf)[range(5), target].sum(), leaf)
    for some in (slice(0, 3), slice(1, 2), slice(0, 5)):
        play = game.play(x[some], target[some])
        assert_near(play.attribution(), expected[some], what="gradient")
        assert play.health().ok
    check_walk(game)


def check_routing(network, model, rule, tau):
    """The Routing map against the dense one, several samples and one alone."""
    game, x = bp.RoutingGame(network, epsilon=0.1, tau=tau), inputs()
    play = game.play(x, [0, 1, 2])
    assert play.health().ok
    expected = torch.stack([routing_map(model, rule, sample, k, tau=tau) for k, sample in enumerate(x)])
    assert_near(play.attribution(), expected, what=f"routing at τ = {tau}")
    assert_near(game.play(x[1:2], [1]).attribution(), expected[1:2], what="one sample alone")
    check_walk(game)


def check_walk(game):
    """Frequencies of sampled walks against marginals, and the distance between two inputs."""
    x = inputs()
    play, other = game.play(x, [0, 1, 2]), game.play(x + 0.3, [0, 1, 2])
    assert bool((play.sample(1000, seed=1).check() > 1e-4).all())
    found = bp.hellinger(play, other)
    assert bool(torch.isfinite(found.distance).all())
    assert_near(bp.hellinger(play, game.play(x.clone(), [0, 1, 2])).bc, torch.ones(3))


def check_values(network, model):
    """The decomposition's difference is the value; variances are finite and not negative."""
    x = inputs()
    pair = bp.decompose(network, x)["head"]
    assert_near((pair.plus - pair.minus) * pair.log_scale.exp()[:, None], model(x))
    variance = bp.moments(network, x, 0.1)["head"].variance
    assert bool(torch.isfinite(variance).all())
    assert bool((variance >= 0).all())


def check_all(function, shape, rule, positive=False, plain=None, taus=(1.0, 0.5)):
    """Everything that holds for an operator which moves, chooses or mixes; `plain` is a twin for autograd."""
    torch.manual_seed(0)
    model = Between(function, shape, positive)
    network = bp.capture(model, inputs())
    twin = model
    if plain is not None:
        twin = Between(plain, shape, positive)
        twin.load_state_dict(model.state_dict())
    check_gradient(network, twin)
    for tau in taus:
        check_routing(network, twin, rule, tau)
    check_values(network, twin)
    return network
