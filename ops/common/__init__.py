"""What the libraries of all ops share: backends, kernel launches, argument checks."""
