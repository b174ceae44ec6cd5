"""Position-aware retrieval evaluation: data sets and metrics."""
