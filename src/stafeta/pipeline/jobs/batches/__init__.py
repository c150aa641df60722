"""What jobs share that make something of readings with a state of their own, micro-batch by micro-batch."""
