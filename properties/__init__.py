"""The laws as tests: the lockstep driver, the Hypothesis state machine that a third party subclasses, and the pytest class."""
