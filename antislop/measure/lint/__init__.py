"""Internal: the checks of `antislop lint`."""
