"""Virtual machines for tests that need another kernel than the host's, or kernel features that it lacks."""
