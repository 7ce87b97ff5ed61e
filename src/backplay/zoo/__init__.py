"""Small networks with generated pictures and reviews that come with the package; nothing is downloaded."""

from backplay.zoo.networks import build
from backplay.zoo.reading import TextClassifier
from backplay.zoo.scenes import Batch, images, picture
from backplay.zoo.sentences import LABELS, Texts, texts
from backplay.zoo.shapes import CLASSES
from backplay.zoo.weights import load

__all__ = ["CLASSES", "LABELS", "Batch", "TextClassifier", "Texts", "build", "images", "load", "picture", "texts"]
