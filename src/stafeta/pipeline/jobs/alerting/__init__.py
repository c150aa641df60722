"""What the job alerts is made of: rules, how readings are judged by them, and how Spark keeps the state."""
