"""The end-to-end law under test: seeded bugs of the engine, traffic for its server, and the tests of both."""
