"""What the tests of the whole engine share."""
