"""What the job replay is made of: what is asked for, what that is, and when it is due."""
