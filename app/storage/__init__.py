"""Database and workspace files; the only package that imports sqlalchemy."""

from app.storage.files import Files, StorageError
from app.storage.session import Store

__all__ = ["Files", "StorageError", "Store"]
