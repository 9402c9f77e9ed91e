"""An app that ends its process."""

import os

os._exit(5)
