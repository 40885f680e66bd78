from __future__ import annotations

from kits.browser_pages import browser, page, pytest_collection_modifyitems

__all__ = ["browser", "page", "pytest_collection_modifyitems"]
