"""Every key of a log as a log of its own: appends, scans, counts and lags by key, over one log of all keys."""
