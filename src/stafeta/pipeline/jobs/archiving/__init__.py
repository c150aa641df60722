"""What the job archive goes by: where it begins, and what the broker need not hold any more."""
