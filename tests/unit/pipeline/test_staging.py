"""What a write that was killed has left in a table."""

from __future__ import annotations

from pathlib import Path

from duobus.pipeline.execution.tables import clear_empty_staging


def test_folders_of_killed_writes_that_have_no_file_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".spark-staging-1" / "_temporary").mkdir(parents=True)
    (tmp_path / ".spark-staging-2" / "batch_id=0b5ea29b-00000001").mkdir(parents=True)
    (tmp_path / ".spark-staging-2" / "batch_id=0b5ea29b-00000001" / "part-0.parquet").write_bytes(b"torn")
    (tmp_path / "entity=orders").mkdir()
    clear_empty_staging(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".spark-staging-2", "entity=orders"]
    clear_empty_staging(str(tmp_path / "missing"))
    clear_empty_staging("s3a://bucket/orders")
