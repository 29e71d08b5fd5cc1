"""What is to be known of a build: an estimate before it, checks and a page after it."""
