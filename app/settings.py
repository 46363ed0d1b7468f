"""Settings of the dashboard and the command line, read from the environment (prefix KRONOS_)."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

ROOT = Path(__file__).resolve().parents[1]


class Settings(BaseSettings):
    """Each field is also an environment variable: `workspace` is KRONOS_WORKSPACE."""

    model_config = SettingsConfigDict(
        env_prefix="KRONOS_", env_ignore_empty=True, extra="ignore", validate_default=True
    )

    workspace: Path = ROOT / "workspace"
    database_url: str = ""
    device: str = "auto"
    launcher: Literal["local"] = "local"
    max_upload_mb: int = Field(default=200, ge=1)
    max_paths: int = Field(default=1000, ge=1)
    heartbeat_seconds: float = Field(default=5.0, gt=0)
    stop_grace_seconds: float = Field(default=30.0, ge=0)
    poll_seconds: float = Field(default=1.0, gt=0)
    colours: Literal["colour-blind safe", "green up", "red up"] = "colour-blind safe"

    @field_validator("workspace")
    @classmethod
    def _absolute(cls, workspace: Path) -> Path:
        # Worker processes may start in another folder.
        return workspace.expanduser().absolute()

    @property
    def resolved_database_url(self) -> str:
        """The SQLAlchemy URL in use: SQLite in the workspace unless one is set.

        A plain `postgresql://` URL is pointed at psycopg 3.
        """
        if not self.database_url:
            return f"sqlite:///{(self.workspace / 'kronos.db').as_posix()}"
        scheme, separator, rest = self.database_url.partition("://")
        if scheme in ("postgres", "postgresql"):
            scheme = "postgresql+psycopg"
        return f"{scheme}{separator}{rest}"


@lru_cache
def get_settings() -> Settings:
    """The settings of this process, read once."""
    return Settings()
