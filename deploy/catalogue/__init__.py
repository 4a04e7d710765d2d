"""What is known about chips, models and releases, as data with sources."""

from glm5_ascend.deploy.catalogue.hardware import Hardware, Link, Sku, hardware, links, skus
from glm5_ascend.deploy.catalogue.models import Model, model, models
from glm5_ascend.deploy.catalogue.tables import CatalogueError

__all__ = [
    "CatalogueError",
    "Hardware",
    "Link",
    "Model",
    "Sku",
    "hardware",
    "links",
    "model",
    "models",
    "skus",
]
