"""What the job rollup is made of."""
