"""How a script becomes part of a job."""
