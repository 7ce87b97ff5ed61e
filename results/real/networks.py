"""Real networks for the benchmark, out of the folder that BACKPLAY_ASSETS names; it is no part of the repository."""

import os
import sys

sys.path.insert(0, os.environ["BACKPLAY_ASSETS"])

import load


def resnet50():
    return load.resnet50()


def vgg16():
    return load.vgg()


def vit():
    return load.vit()
