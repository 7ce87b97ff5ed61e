#!/bin/sh
# Every run on the real networks, the most telling first; stopped at any time, it goes on where it was.
#   BACKPLAY_ASSETS=… results/real/run.sh [RUN …]
cd "$(dirname "$0")/../.." || exit 1
export BACKPLAY_PETS="${BACKPLAY_PETS:-$PWD/out/pets}" OMP_NUM_THREADS=1
python="${PYTHON:-python}"
"$python" results/real/layout.py "$BACKPLAY_PETS" || exit 1
for run in ${*:-vit vit-attention resnet50 vit-faithfulness vit-costly vgg16 resnet50-faithfulness}; do
  "$python" -m backplay bench run "results/real/$run.yaml" --out "out/real/$run" --resume --workers "${WORKERS:-2}" || exit 1
done
