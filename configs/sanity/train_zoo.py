"""Train the zoo's VGG with several seeds and for several lengths: what zoo-distances.yaml compares.

python configs/sanity/train_zoo.py out/trained
"""

import sys
from pathlib import Path

from backplay.zoo.training import train
from backplay.zoo.weights import save

SEEDS, STEPS = (0, 1), (10, 30)

if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/trained")
    out.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for steps in STEPS:
            path = out / f"vgg-seed{seed}-steps{steps}.safetensors"
            if not path.exists():
                save(train("vgg", seed=seed, steps=steps), path)
            sys.stdout.write(f"{path}\n")
