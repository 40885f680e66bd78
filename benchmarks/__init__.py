"""Benchmarks of duobus: our own load generator (`load`), the brokers it drives (`peers`) and the runner (`run`)."""
