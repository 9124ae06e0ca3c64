"""Real parts that tests talk to. Each starts on a free port, dies with the test process and stops by its own pid."""
