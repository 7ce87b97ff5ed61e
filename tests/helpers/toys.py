"""A vision transformer in small: 8 × 8 images in four patches, two blocks of two heads, fused or spelled out."""

import torch
from torch import nn


class Block(nn.Module):
    """One block; unfused attention keeps its weights where a test can ask for their gradients."""

    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused, self.weights = heads, fused, None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
            if not torch.compiler.is_exporting():
                self.weights = weights
            mixed = weights @ v
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class TinyViT(nn.Module):
    """Patches, a class token if wanted, positions, blocks, a norm and a head."""

    def __init__(self, fused=True, class_token=True, width=6, depth=2, heads=2, classes=3):
        super().__init__()
        self.depth, self.heads, self.patch_size, self.class_token = depth, heads, 4, class_token
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width)) if class_token else None
        self.position = nn.Parameter(0.5 * torch.randn(1, 4 + class_token, width))
        self.blocks = nn.ModuleList([Block(width, heads, fused) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.position
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, 0] if self.class_token else x.mean(1))


def tiny_vit(**options):
    """Lively weights: no bias or norm at its start, attention far from uniform. The same ones whatever the options."""
    torch.manual_seed(3)
    model = TinyViT(**options).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and "weight" in name else 0.6 * noise)
    return model


def picture(batch=2):
    """Images for it."""
    return torch.randn(batch, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(11))
