"""Everything about a module that a guest could change, taken before and compared after."""

import torch


def portrait(model):
    """Everything about a module that a guest could change."""
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "pointers": {k: v.data_ptr() for k, v in model.state_dict().items()},
        "versions": {k: v._version for k, v in [*model.named_parameters(), *model.named_buffers()]},
        "modes": {k: m.training for k, m in model.named_modules()},
        "wants": {k: p.requires_grad for k, p in model.named_parameters()},
        "grads": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        "classes": {k: type(m) for k, m in model.named_modules()},
        "hooks": {
            k: {a: dict(v) for a, v in vars(m).items() if "hook" in a and isinstance(v, dict)}
            for k, m in model.named_modules()
        },
        "attributes": {k: set(vars(m)) for k, m in model.named_modules()},
        "forwards": {k: "forward" in vars(m) for k, m in model.named_modules()},
    }


def same(before, after):
    for key in before:
        for name, value in before[key].items():
            other = after[key][name]
            equal = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            assert equal, f"{key} of {name} changed"
        assert before[key].keys() == after[key].keys()


def mixed_modes(model):
    """A model that is half in train mode, with frozen parameters, gradients and hooks of its owner."""
    model.train()
    model.block.eval()
    model.head.bias.requires_grad_(False)
    model.stem[0].weight.grad = torch.ones_like(model.stem[0].weight)
    model.pool.register_forward_hook(lambda module, args, output: None)
    return model
