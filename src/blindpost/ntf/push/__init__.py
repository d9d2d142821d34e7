"""Push providers: the services that wake a phone, each behind `ports.Provider`."""
