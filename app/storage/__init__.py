"""Database and workspace files; the only package that imports sqlalchemy."""

from app.storage.files import Files, StorageError
from app.storage.session import DatabaseError, Store

__all__ = ["DatabaseError", "Files", "StorageError", "Store"]
