"""Edge to landing: plan, snapshot, schema, send, finish, recover, clean."""
