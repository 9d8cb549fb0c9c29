"""What ends a campaign without a verdict."""


class BadStore(ValueError):
    """A store that cannot be used: one sentence that names the cause and the mend."""


class BadCluster(ValueError):
    """A cluster that cannot be used: one sentence that names the cause and the mend."""


class HarnessBroken(RuntimeError):
    """The canary was not caught: whatever this campaign would say is worth nothing."""
