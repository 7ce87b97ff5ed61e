"""Small networks and generated pictures that come with the package; nothing is downloaded."""

from backplay.zoo.networks import build, load
from backplay.zoo.scenes import Batch, images, picture
from backplay.zoo.shapes import CLASSES

__all__ = ["CLASSES", "Batch", "build", "images", "load", "picture"]
