"""Transformers with all layers trained, by Adam and SGD (§5 and Appendix B); images of digits need scikit-learn."""

from jaxflow.papers.boix2023.practical.images import ImageSet as ImageSet
from jaxflow.papers.boix2023.practical.images import cifar as cifar
from jaxflow.papers.boix2023.practical.images import digits as digits
from jaxflow.papers.boix2023.practical.images import image_folder as image_folder
from jaxflow.papers.boix2023.practical.models import GPT as GPT
from jaxflow.papers.boix2023.practical.models import GPT2 as GPT2
from jaxflow.papers.boix2023.practical.models import VIT_B16 as VIT_B16
from jaxflow.papers.boix2023.practical.models import VIT_CIFAR as VIT_CIFAR
from jaxflow.papers.boix2023.practical.models import Shape as Shape
from jaxflow.papers.boix2023.practical.models import ViT as ViT
from jaxflow.papers.boix2023.practical.models import rescaled as rescaled
from jaxflow.papers.boix2023.practical.runs import Size as Size
from jaxflow.papers.boix2023.practical.runs import image_runs as image_runs
from jaxflow.papers.boix2023.practical.runs import text_runs as text_runs
from jaxflow.papers.boix2023.practical.spectra import head_products as head_products
from jaxflow.papers.boix2023.practical.spectra import normalised_spectrum as normalised_spectrum
from jaxflow.papers.boix2023.practical.spectra import stable_rank as stable_rank
from jaxflow.papers.boix2023.practical.text import library_text as library_text
from jaxflow.papers.boix2023.practical.text import local_text as local_text
from jaxflow.papers.boix2023.practical.train import ADAM_CIFAR as ADAM_CIFAR
from jaxflow.papers.boix2023.practical.train import ADAM_IMAGENET as ADAM_IMAGENET
from jaxflow.papers.boix2023.practical.train import SGD_CIFAR as SGD_CIFAR
from jaxflow.papers.boix2023.practical.train import Recipe as Recipe
from jaxflow.papers.boix2023.practical.train import train as train
