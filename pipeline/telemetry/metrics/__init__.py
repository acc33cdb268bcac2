"""What /metrics shows, one module an idea; each gives its families when scraped. Names: docs/metrics.md."""
