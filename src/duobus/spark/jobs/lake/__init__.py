"""Where captured messages lie: tables of a lake that keep each batch once, and folders whose small files become few."""
