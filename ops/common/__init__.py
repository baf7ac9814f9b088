"""What the libraries of all ops share: which backend a tensor is on, kernel launches, argument
checks."""
