"""What `stageline new-stage` writes: files from templates."""
