"""What the job audit looks at, a file for each kind of proof."""
